//! What is wanted of a row of logits without the row: the greatest, and the K greatest.
