"""Every setting, once: flag, default, help. The CLI, `LEGATO_*` and `LLM(**kwargs)` read these tables."""

from dataclasses import dataclass, field
from typing import Any

DEFAULT_MODEL = "smollm2-135m-instruct"
BATCHING_POLICIES = ("continuous", "prefill-first", "static")
STATIC_ROUND = 4  # requests in a round, as in the teaching server
DEFAULT_POOL_BYTES = 2**30  # of keys and values, where there is room


def flag(default: Any, help: str, **extra: Any) -> Any:
    """A dataclass field that is also a flag: `max_num_seqs` is --max-num-seqs and LEGATO_MAX_NUM_SEQS.

    extra: choices, least, most, aliases (more spellings), is_list, is_secret, is_bytes (may be written 512M),
    is_url, is_origin (of a web page, or *), refusal (why a switch cannot be on), type (if the default is
    None).
    """
    return field(default=default, repr=not extra.get("is_secret"), metadata={"help": help, **extra})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine as its user describes it; None is chosen when the model and the machine are known."""

    model: str = flag(
        DEFAULT_MODEL,
        "a catalog name, a directory in Hugging Face layout, a .gguf file, or a hub name; legato serve takes"
        " several, LEGATO_MODEL=a,b too",
        aliases=("--model-path", "-m"),
    )
    served_model_name: tuple[str, ...] = flag(
        (),
        "names that clients may use; the first one is shown. With several models: one for each, in order",
        is_list=True,
    )
    tokenizer: str | None = flag(
        None, "a directory or tokenizer.json to use instead of the model's own", type=str
    )
    revision: str | None = flag(None, "branch, tag or commit of a hub model", type=str)
    chat_template: str | None = flag(
        None, "a file with a Jinja chat template, instead of the model's own", type=str
    )
    tool_call_parser: str = flag(
        "auto",
        "the form in which the model writes calls of tools; auto takes what its chat template speaks of, and"
        " hermes where that speaks of none",
        choices=("auto", "hermes", "llama3_json", "mistral"),
    )
    trust_remote_code: bool = flag(
        False,
        "refused: legato never runs code that comes with a model",
        refusal="legato never runs code that comes with a model",
    )
    backend: str = flag(
        "auto",
        "what computes: the C++ kernels (cpu) where they are built, or numpy (reference: slow, obvious)",
        choices=("auto", "cpu", "reference"),
    )
    dtype: str = flag(
        "auto",
        "how weights and K/V are kept: auto is bfloat16, and leaves quantised weights as they are (their"
        " products round activations to 8 bits); bfloat16 and float32 decode them",
        choices=("auto", "bfloat16", "float32"),
    )
    quantization: str = flag(
        "none",
        "what float weights become on load: int8 or int4, in groups of 32 with scales of their own; weights"
        " that the file holds quantised stay as they are",
        choices=("none", "int8", "int4"),
    )
    load_format: str = flag(
        "auto",
        "dummy makes weights up, of a directory's config.json alone: answers make no sense, but take as"
        " long as the model's own would",
        choices=("auto", "dummy"),
    )
    packed_cache: bool = flag(
        True, "keep weights on disk as the kernels read them, so that the next start maps them"
    )
    threads: int | None = flag(
        None,
        "threads that compute; by default the physical cores that the process may use",
        type=int,
        least=1,
        aliases=("-t",),
    )
    max_model_len: int | None = flag(
        None,
        "context length; by default the model's own",
        type=int,
        least=1,
        aliases=("--context-length", "-c"),
    )
    max_num_seqs: int | None = flag(
        None,
        f"requests that run at once; by default 64, or {STATIC_ROUND} with --batching static",
        type=int,
        least=1,
        aliases=("--max-running-requests", "-np"),
    )
    max_num_batched_tokens: int = flag(
        128, "tokens that one step computes at most", least=1, aliases=("--chunked-prefill-size",)
    )
    mixed_prefill_tokens: int = flag(
        128,
        "tokens of prompts in a step in which requests decode: every stream waits for such a step",
        least=1,
    )
    long_prefill_token_threshold: int | None = flag(
        None,
        "tokens of one prompt in a step while others wait; by default half of the room in the step, or"
        " the whole rest of a prompt that fits",
        type=int,
        least=1,
    )
    batching: str = flag("continuous", "who may join the running batch, and when", choices=BATCHING_POLICIES)
    fair_sharing: bool = flag(
        True,
        "who shows another API key is another party: what has been computed for each decides who goes first,"
        " and who asks for little is not held up by who asks for much; with --batching continuous",
    )
    fair_step_tokens: int = flag(
        4,
        "tokens in a step of a party that asks for much, while others that have asked for less may ask again:"
        " what these then wait for",
        least=1,
    )
    overlap: bool = flag(True, "plan the next step while this one computes")
    block_size: int = flag(16, "tokens in a page of the K/V store", least=1, aliases=("--page-size",))
    enable_prefix_caching: bool = flag(True, "keep the K/V of finished prompts for those that begin alike")
    kv_cache_memory_bytes: int | None = flag(
        None,
        "size of the K/V store, in bytes or like 512M or 2G (powers of 1024); by default 1G or half of"
        " what the weights leave of the usable memory, whichever is less",
        type=int,
        least=1,
        is_bytes=True,
    )
    kv_cache_dtype: str = flag(
        "auto",
        "how keys and values are kept: auto is bfloat16, or float32 with --dtype float32; int8 takes little"
        " more than half of bfloat16's memory and is less exact",
        choices=("auto", "bfloat16", "float32", "int8"),
    )
    num_pages: int | None = flag(None, "size of the K/V store in pages, instead of bytes", type=int, least=1)
    max_num_queued_reqs: int = flag(2048, "requests that may wait; the next one gets 429", least=1)
    max_num_queued_tokens: int | None = flag(
        None, "tokens of prompts that may wait in all; a request beyond gets 429", type=int, least=1
    )
    generation_config: str = flag(
        "auto",
        "sampling defaults: the model's own, or none (the API's; also vllm)",
        choices=("auto", "none", "vllm"),
    )
    watchdog_s: int = flag(
        30, "seconds without progress, at work or while it loads, after which an engine is replaced", least=1
    )
    record: str | None = flag(
        None,
        "a file to which the scheduler's decisions are recorded, for legato replay; no prompt can be read out"
        " of it",
        type=str,
    )
    record_bytes: int = flag(
        64 * 2**20, "size of that recording and of its older half together", least=2**20, is_bytes=True
    )
    seed: int | None = flag(None, "makes the seeds drawn for requests without one repeatable", type=int)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where and for whom the HTTP server answers."""

    host: str = flag("127.0.0.1", "address to listen on")
    port: int = flag(8000, "port to listen on; 0 takes a free one", least=0, most=65535)
    api_key: tuple[str, ...] = flag(
        (), "keys that clients must send as bearer tokens", is_list=True, is_secret=True
    )
    api_key_file: str | None = flag(
        None,
        "a file with such keys, one a line; blank lines and those that begin with # are skipped",
        type=str,
    )
    max_requests_per_key: int = flag(
        0,
        "calls that generate which the holder of a key may have open at once; the next one gets 429; 0: no"
        " limit. Without keys all clients count as one",
        least=0,
    )
    requests_per_minute_per_key: int = flag(
        0, "calls that generate which the holder of a key may make in a minute; 0: no limit", least=0
    )
    max_models_memory_bytes: int | None = flag(
        None,
        "what the engines of several models may take together, in bytes or like 8G; by default what the"
        " machine has free at the start",
        type=int,
        least=1,
        is_bytes=True,
    )
    idle_unload_s: int = flag(
        0,
        "seconds without a call after which a model is unloaded, to be loaded again by the next; 0: it stays"
        " until another needs its memory",
        least=0,
    )
    ssl_keyfile: str | None = flag(None, "key of the certificate, in PEM: the server speaks HTTPS", type=str)
    ssl_certfile: str | None = flag(None, "certificate, with those that it rests on, in PEM", type=str)
    allowed_origins: tuple[str, ...] = flag(
        (),
        "origins like https://app.example whose web pages may call this server from a browser; * is all",
        is_list=True,
        is_origin=True,
    )
    allowed_hosts: tuple[str, ...] = flag(
        (),
        "names beside localhost that a server without a key is called by; others get 403, lest a web page"
        " calls in the name of its reader",
        is_list=True,
    )
    root_path: str = flag("", "path prefix that a proxy in front has taken off")
    vllm_url: str | None = flag(
        None, "OpenAI server of vLLM that answers /generate_vllm", type=str, is_url=True
    )
    queue_timeout_s: int = flag(
        0,
        "seconds from a request's arrival to its first token, then 503 with the code queue_timeout;"
        " 0: no limit",
        least=0,
    )
    request_timeout_s: int = flag(
        0,
        "seconds from a request's arrival to its end, then the reason timeout; 0: no limit. A client may"
        " shorten it by the header x-request-timeout",
        least=0,
    )
    ttft_limit_s: float = flag(
        0,
        "seconds from a request's arrival to its first token, as predicted when it comes; what would take"
        " longer gets 429 with the code ttft_limit at once, unless nobody else is served; 0: no limit",
        type=float,
        least=0,
        aliases=("--ttft-limit",),
    )
    send_timeout_s: int = flag(
        60,
        "seconds in which a client may take nothing of what waits for it; then its request is aborted and the"
        " connection closed",
        least=1,
    )
    drain_timeout_s: int = flag(
        30,
        "seconds that running requests get to end in after SIGTERM or Ctrl-C; a second signal ends at once",
        least=0,
    )
    strict: bool = flag(
        False, "refuse with 400 what would be ignored or adjusted, instead of naming it in a header"
    )
    log_level: str = flag("info", "how much is logged", choices=("debug", "info", "warning", "error"))
    log_format: str = flag("text", "a line of text, or a JSON object a line", choices=("text", "json"))
    otlp_traces_endpoint: str | None = flag(
        None,
        "where spans of calls are sent, OTLP over HTTP, like http://127.0.0.1:4318/v1/traces; needs the extra"
        " legato[otel]. No texts are sent; OTEL_* variables set the rest",
        type=str,
        is_url=True,
    )
    enable_auto_tool_choice: bool = flag(
        True, "the model may call the tools of a request as it likes: always so, the flag changes nothing"
    )
    enable_log_requests: bool = flag(False, "log a line for each request (never its text)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The scheduler's part, resolved.

    mixed_prefill_tokens  tokens of prompts in a step that has decodes
    long_prefill_tokens   tokens of one prompt in a step while others wait; None: half of the room
    max_step_scores       prompt tokens of a step whose logits are computed for prompt_logprobs
    is_fair               whether tenants share fairly; else all requests count as one tenant's
    fair_step_tokens      tokens in a step of a heavy tenant, which a light one may have to wait for
    max_preemptions       a request preempted so often is next admitted with all the pages it can need
    """

    max_num_seqs: int
    max_step_tokens: int
    mixed_prefill_tokens: int
    long_prefill_tokens: int | None
    max_model_len: int
    max_queued: int = 2048
    max_queued_tokens: int | None = None
    max_step_scores: int = 64
    max_preemptions: int = 3
    is_fair: bool = True
    fair_step_tokens: int = 4

    @property
    def max_step_logits(self) -> int:
        """Rows of logits that a step computes at most: one for each request that samples, and the scores."""
        return self.max_num_seqs + self.max_step_scores


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The K/V store's part, resolved."""

    num_pages: int
    page_size: int
    enable_prefix_caching: bool = True
