//! Numbers in, numbers out: the arithmetic of a transformer, in several instruction sets that agree in every bit.
