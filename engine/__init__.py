"""The engine: one thread, one device. Streams, pages, scheduler, batches, sampling, chunks."""
