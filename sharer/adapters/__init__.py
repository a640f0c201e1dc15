"""Translators between sharer's words and the outside: NVML, the kubelet, files. Strangers to each other."""
