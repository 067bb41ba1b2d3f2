"""One module per kind of source; each infers a schema from a sample and yields record batches in bounded memory."""
