"""Serving engines and model libraries that run on flashmla: plug-ins for vLLM and SGLang, attention for transformers."""
