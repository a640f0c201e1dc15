"""sharer: pods share NVIDIA GPUs on a stock Kubernetes cluster."""
