"""Text to ids: corpora, vocabularies and tokenizers, id files, batching."""
