"""One file an operation: its PyTorch twin, its native call if it has one, and the choice between the two.

products             Σ before ⊗ after: the gradient by a dense transition matrix
walks                the recursion through a batch, forward and back
steps                one step across the matrices of pairs of blocks, and the gradient by those matrices
pairs                transition probabilities of pairs of blocks, from the vectors of their states
cells                the same, from a table of logits
log_totals           log Σ exp of bilinear logits that are never held at once
columns              log p(word | state) where every state may emit every word
block_columns        log p(word | state) where words share blocks of states
overlapping_columns  log p(word | state) where each word has its own states, shared with others
adamw                one step of AdamW
distinct             the distinct states of lists that may overlap
segments             ragged runs cut into equal segments, so that one batched product serves them all
precision            what autocast asks of products
library              the native library (src/native): loading it, and calls into it
"""

from trellis.ops.library import Status, bare_rate, levels, status, usable, using

__all__ = ["Status", "bare_rate", "levels", "status", "usable", "using"]
