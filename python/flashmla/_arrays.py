"""Arrays of any framework: what they are, how the C++ side reads them, and where results come from.

Nothing here imports a framework: an array's own module is loaded already when the array exists.
"""

from __future__ import annotations

import sys
from typing import Any

from . import _native

# Whether this build computes on NVIDIA GPUs (whether there is one is another matter).
HAS_CUDA = any(device == "cuda" for _, device, _ in _native.backends())
_CUDA = 2  # kDLCUDA
# Device types of DLPack whose memory the CPU reads: kDLCPU and kDLCUDAHost (pinned).
_HOST_DEVICES = (1, 3)
_DEVICE_NAMES = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda managed", 14: "oneapi"}


def is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(isinstance(array, torch.Tensor))


def is_numpy(array: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and bool(isinstance(array, numpy.ndarray))


def is_jax(array: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and bool(isinstance(array, jax.Array))


def _type_name(array: Any) -> str:
    return f"{type(array).__module__}.{type(array).__qualname__}"


def _is_ml_dtypes_bf16(array: Any) -> bool:
    """NumPy's bf16 of the package ml_dtypes, which NumPy can export neither by DLPack nor as a buffer."""
    return array.dtype.kind == "V" and array.dtype.name == "bfloat16"


def _device(argument: str, array: Any) -> str:
    """'the CPU' or 'cuda:0', where an array lies; what flashmla cannot compute on is refused."""
    device = getattr(array, "__dlpack_device__", None)
    if device is None:
        return "the CPU"
    kind, index = device()
    if int(kind) in _HOST_DEVICES:
        return "the CPU"
    if int(kind) == _CUDA and HAS_CUDA:
        return f"cuda:{int(index)}"
    name = _DEVICE_NAMES.get(int(kind), f"DLPack device type {int(kind)}")
    has = "takes arrays on the CPU and on NVIDIA GPUs" if HAS_CUDA else "has no CUDA back end and takes arrays on the CPU"
    raise NotImplementedError(
        f"{argument}: got {_type_name(array)} on device {name}:{index}; this version of flashmla {has}"
    )


class Place:
    """Where a call with arrays other than torch's runs: the CPU, or a GPU and a stream. Mixed devices are refused."""

    def __init__(self, stream: Any, **arrays: Any) -> None:
        self.device = "the CPU"
        first = True
        for argument, array in arrays.items():
            if array is None:
                continue
            device = _device(argument, array)
            if first:
                self.device, first = device, False
            elif device != self.device:
                raise ValueError(
                    f"{argument}: got {_type_name(array)} on {device} in a call with arrays on {self.device}; "
                    f"want one device"
                )
        self.on_gpu = self.device != "the CPU"
        self.stream = self._checked(stream)

    def _checked(self, stream: Any) -> int:
        if stream is None:
            return 0
        if not self.on_gpu:
            raise ValueError(
                f"stream: got {stream!r} with arrays on the CPU; want None (streams belong to GPU arrays)"
            )
        if isinstance(stream, bool) or not isinstance(stream, int) or stream < 0:
            raise ValueError(f"stream: got {stream!r}; want a cudaStream_t as an integer, or None (default stream)")
        return stream

    def read(self, argument: str, array: Any) -> Any:
        return readable(argument, array, self)

    def write(self, argument: str, array: Any) -> Any:
        return writable(argument, array, self)

    def export(self, array: Any) -> Any:
        """The array as a capsule, whose producer has made the call's stream wait for its own."""
        return array.__dlpack__(stream=self.stream or 1)  # 1: the default stream


def refuse_torch_stream(stream: Any) -> None:
    if stream is not None:
        raise ValueError(
            f"stream: got {stream!r} with torch tensors; want None (calls run on torch's current stream)"
        )


def _check_numpy(argument: str, array: Any, written: bool) -> None:
    if not array.dtype.isnative:
        raise ValueError(f"{argument}: got dtype {array.dtype.str} in foreign byte order; want native byte order")
    if written and not array.flags.writeable:
        raise ValueError(f"{argument}: got a read-only numpy.ndarray; want a writable one (it is written in place)")


def readable(argument: str, array: Any, place: Place) -> Any:
    """What the C++ side takes for an input: the same memory. None stays None."""
    if array is None:
        return None
    if is_numpy(array):
        _check_numpy(argument, array, written=False)
        return array.view("uint16") if _is_ml_dtypes_bf16(array) else array
    if is_jax(array) and type(array).__name__.endswith("Tracer"):
        raise ValueError(f"{argument}: got {_type_name(array)}; flashmla runs on arrays with values, outside jax.jit")
    return place.export(array) if place.on_gpu else array


def writable(argument: str, array: Any, place: Place) -> Any:
    """As `readable`, for an argument that is written in place: never a copy, which would lose the write."""
    if array is None:
        return None
    if is_jax(array):
        raise ValueError(
            f"{argument}: got a jax.Array, which is immutable, but this argument is written in place; "
            f"want a NumPy array or a torch tensor"
        )
    if is_numpy(array):
        _check_numpy(argument, array, written=True)
        return array.view("uint16") if _is_ml_dtypes_bf16(array) else array
    if place.on_gpu:
        return place.export(array)
    export = getattr(array, "__dlpack__", None)
    if export is None:
        return array
    try:
        return export(max_version=(1, 0), copy=False)
    except TypeError:
        return export()  # a producer from before `copy=`, whose exports always share memory


def dtype_name(array: Any) -> str:
    """'bf16', 'fp16', 'fp32', or the framework's own name."""
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    name = str(getattr(array, "dtype", type(array).__name__)).rpartition(".")[2]
    return names.get(name, name)


def reads_uint16_as_bf16(q: Any, dtype: str | None) -> bool:
    """Checks `dtype=` against `q` (the array that leads the call) and says how uint16 is to be read."""
    got = dtype_name(q)
    if dtype is None:
        return got == "bf16"
    if dtype not in ("bf16", "fp16", "fp32"):
        raise ValueError(f"dtype: got {dtype!r}; want None, 'bf16' (reads uint16 arrays as bf16), 'fp16' or 'fp32'")
    if got == dtype or (dtype == "bf16" and got == "uint16"):
        return dtype == "bf16"
    raise ValueError(f"dtype: got {dtype!r} with arrays of {got}; want the arrays' own dtype, or 'bf16' with uint16")


class Results:
    """Makes a call's results as NumPy arrays and hands them out in the framework of `like`."""

    def __init__(self, like: Any, place: Place, **given: Any) -> None:
        self._like = like
        if place.on_gpu:
            for argument, array in given.items():
                if array is None:
                    raise ValueError(
                        f"{argument}: got None with arrays on {place.device}; want an array to write into (flashmla makes "
                        f"results on a GPU for torch tensors only)"
                    )
            return
        import numpy

        self._numpy = numpy
        self._dtype: Any = numpy.dtype("float32")
        if is_numpy(like):
            self._dtype = like.dtype
        elif dtype_name(like) == "bf16":
            self._dtype = like.dtype if is_jax(like) else numpy.dtype("uint16")
        elif dtype_name(like) in ("fp16", "uint16"):
            self._dtype = numpy.dtype({"fp16": "float16"}.get(dtype_name(like), "uint16"))

    def empty(self, shape: tuple[int, ...]) -> Any:
        """Uninitialised, in the dtype of `like`."""
        return self._numpy.empty(shape, self._dtype)

    def empty_lse(self, shape: tuple[int, ...]) -> Any:
        return self._numpy.empty(shape, self._numpy.float32)

    def hand_out(self, array: Any) -> Any:
        if not is_jax(self._like) or not is_numpy(array):
            return array
        import jax  # type: ignore[import-not-found,unused-ignore]

        return jax.device_put(array, self._like.device)
