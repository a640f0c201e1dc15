"""What sharer decides. Pure: values in, values out; no files, clock, threads, logging, gRPC or NVML."""
