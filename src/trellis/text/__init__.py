"""From text to batches of ids: corpora, tokenizers, id files, batching; nothing here knows a probability."""

from trellis.text.batching import BATCHINGS, Batch, Batching, Sequences, Streams, Windows
from trellis.text.brown import BrownTree, brown
from trellis.text.characters import ByteTokenizer, CharacterTokenizer
from trellis.text.clusters import brown_clusters, read_paths, write_paths
from trellis.text.corpora import Corpus, FileCorpus, MemoryCorpus, open_corpus
from trellis.text.ids import IdFile, IdMeta, prepare
from trellis.text.integers import IntegerTokenizer
from trellis.text.subwords import SubwordTokenizer
from trellis.text.tokenizer import Tokenizer, load_tokenizer
from trellis.text.vocabulary import WordTokenizer

__all__ = [
    "BATCHINGS",
    "Batch",
    "Batching",
    "BrownTree",
    "ByteTokenizer",
    "CharacterTokenizer",
    "Corpus",
    "FileCorpus",
    "IdFile",
    "IdMeta",
    "IntegerTokenizer",
    "MemoryCorpus",
    "Sequences",
    "Streams",
    "SubwordTokenizer",
    "Tokenizer",
    "Windows",
    "WordTokenizer",
    "brown",
    "brown_clusters",
    "load_tokenizer",
    "open_corpus",
    "prepare",
    "read_paths",
    "write_paths",
]
