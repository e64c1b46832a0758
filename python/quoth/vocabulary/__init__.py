"""What `quoth.tokenizer` is made of: tokens, splitters, merging, special tokens, streaming.

Nothing here reads files or knows models; everything is built from a GGUF file's metadata.
"""
