"""Tokenizers built from what is no tokenizer.json: GGUF metadata, vocab.json, SentencePiece files."""
