"""vLLM plug-in: decodes MLA models with flashmla.

vLLM finds it through the entry points of the installed package; `--attention-backend CUSTOM` chooses it. docs/serving.md says
which versions, dtypes and features it serves. Importing this module imports neither torch nor vLLM.

FLASHMLA_VLLM_BACKEND_NAME names the member of vLLM's `AttentionBackendEnum` under which the back end is registered, by default
CUSTOM. With FLASHMLA it takes the place of vLLM's own FlashMLA, also where vLLM chooses that one by itself.
"""

from __future__ import annotations

import os

LOGGER_NAME = "vllm.plugins.flashmla"  # below vLLM's own logger, whose handler and level it takes

_BACKENDS = {
    "CUSTOM": "flashmla.engines.vllm.backend.FlashMLABackend",
    "FLASHMLA": "flashmla.engines.vllm.backend.FlashMLAOverride",
}
_registered: set[str] = set()


def backend_name() -> str:
    """The name by which vLLM knows the back end.

    Raises:
        ValueError: FLASHMLA_VLLM_BACKEND_NAME is neither CUSTOM nor FLASHMLA.
    """
    name = os.environ.get("FLASHMLA_VLLM_BACKEND_NAME") or "CUSTOM"
    if name not in _BACKENDS:
        raise ValueError(f"FLASHMLA_VLLM_BACKEND_NAME: got {name!r}; want {' or '.join(_BACKENDS)}")
    return name


def register() -> None:
    """Entry point `vllm.general_plugins`: makes the back end known. vLLM calls it in each of its processes; calls after the
    first change nothing.

    Raises:
        ValueError: as `backend_name`.
    """
    name = backend_name()
    if name in _registered:
        return
    from vllm.logger import init_logger
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum[name], _BACKENDS[name])
    _registered.add(name)
    logger = init_logger(LOGGER_NAME)
    if os.environ.get("VLLM_ATTENTION_BACKEND"):
        logger.warning(
            "VLLM_ATTENTION_BACKEND is set, but vLLM no longer reads it: choose flashmla with --attention-backend %s", name
        )
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu":
        logger.warning(
            "VLLM_TARGET_DEVICE=cpu makes vLLM pass over platform plug-ins: --attention-backend %s will not be honoured. "
            "Leave the variable unset",
            name,
        )


def cpu_platform() -> str | None:
    """Entry point `vllm.platform_plugins`: the class that honours the back end on CPUs; None where vLLM runs on something else.

    vLLM's own CPU platform passes over every back end but its own. Ours changes nothing unless flashmla is chosen.
    """
    from vllm.platforms import cpu_platform_plugin

    return "flashmla.engines.vllm.platform.FlashMLACpuPlatform" if cpu_platform_plugin() else None
