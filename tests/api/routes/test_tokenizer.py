"""The tokenizer's routes: text to ids and back, and what a remote tokenizer needs to know."""

from fastapi.testclient import TestClient

from tests.api.openai_calls import USER, refused


def test_tokenize_and_detokenize(client: TestClient) -> None:
    assert client.post("/tokenize", json={"prompt": "hé"}).json() == {
        "tokens": [104, 195, 169],
        "count": 3,
        "max_model_len": 1024,
    }
    chat = client.post("/tokenize", json={"messages": [USER]}).json()
    assert bytes(chat["tokens"]) == b"<user>hi<assistant>"
    assert client.post("/detokenize", json={"tokens": [104, 195, 169]}).json() == {"prompt": "hé"}


def test_tokenize_wants_a_prompt_or_messages(client: TestClient) -> None:
    refused(client, "/tokenize", {})
    refused(client, "/tokenize", {"prompt": "a", "messages": [USER]})
    assert refused(client, "/tokenize", {"messages": []})["param"] == "messages"
    assert refused(client, "/detokenize", {"tokens": ["a"]})["param"].startswith("tokens")
    assert refused(client, "/detokenize", {"tokens": [300]})["code"] == "invalid_token_id"


def test_tokenizer_info_has_what_a_remote_tokenizer_asks_for(client: TestClient) -> None:
    assert client.get("/tokenizer_info").json() == {
        "bos_token": None,
        "eos_token": "<end>",
        "pad_token": None,
        "unk_token": None,
        "chat_template": "{{ messages }}",
        "vocab_size": 256,
        "model_max_length": 1024,
    }
    assert client.get("/tokenizer_info?model=fake-alias").status_code == 200
    assert client.get("/tokenizer_info?model=x").json()["error"]["code"] == "model_not_found"
