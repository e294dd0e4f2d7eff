"""The tokenizer over HTTP, as vLLM has it: text to ids and back, and what it is."""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from legato.api.answers.deadlines import Deadlines
from legato.api.bodies.contract import contract_headers
from legato.api.bodies.openai import DetokenizeBody, TokenizeBody
from legato.api.errors import ERROR_RESPONSES
from legato.api.transport.json_body import StrictJsonRoute
from legato.api.transport.model_lookup import find_started
from legato.core.errors import RequestError

router = APIRouter(route_class=StrictJsonRoute, responses=ERROR_RESPONSES, tags=["tokenizer"])


@router.post("/tokenize", response_model=None, summary="Count and list the tokens of a prompt")
async def tokenize(body: TokenizeBody, request: Request) -> Response:
    """Tokens of `prompt`, or of the prompt that `messages` give."""
    headers = contract_headers(request, body)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    _, service = await find_started(request, body.model)
    async with Deadlines.of(request).while_queueing():
        if body.messages is not None:
            tokens = await service.generator.chat_prompt(
                body.messages, tools=body.told_tools(), **body.template_options()
            )
        else:
            special = body.add_special_tokens is not False
            tokens = await service.generator.tokenize(body.prompt or "", add_special_tokens=special)
    answer = {"tokens": tokens, "count": len(tokens), "max_model_len": service.max_model_len}
    return JSONResponse(answer, headers=headers)


@router.post("/detokenize", response_model=None, summary="The text of tokens")
async def detokenize(body: DetokenizeBody, request: Request) -> Response:
    headers = contract_headers(request, body)
    _, service = await find_started(request, body.model)
    async with Deadlines.of(request).while_queueing():
        text = await service.generator.detokenize(body.tokens)
    return JSONResponse({"prompt": text}, headers=headers)


@router.get("/tokenizer_info", summary="Special tokens and the chat template")
async def tokenizer_info(request: Request, model: str | None = None) -> dict[str, Any]:
    """What a client needs to write prompts itself; null for what the model does not have."""
    _, service = await find_started(request, model)
    info = service.generator.tokenizer_info()
    return {
        "bos_token": info.special_tokens.get("bos"),
        "eos_token": info.special_tokens.get("eos"),
        "pad_token": info.special_tokens.get("pad"),
        "unk_token": info.special_tokens.get("unk"),
        "chat_template": info.chat_template,
        "vocab_size": info.vocab_size,
        "model_max_length": service.max_model_len,
    }
