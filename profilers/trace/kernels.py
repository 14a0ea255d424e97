"""Classes of kernels, by name: `classify`.

The classes are those of the BERT characterisation (arXiv 2104.08335, section 3), and convolution, embedding and
communication. The name decides, since it is the only property that every profiler writes.
"""

import re

COLLECTIVE = "collective"

#: Classes and the pattern of their kernels' names; the first match counts. A class may have several patterns.
_PATTERNS: tuple[tuple[str, str], ...] = (
    # Inductor names a fused kernel after every operator in it, those around a collective or a GEMM included.
    (
        COLLECTIVE,
        r"^(?!triton_).*(nccl|rccl|msccl|deep_ep|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
        r"|cross_device_reduce)",
    ),
    ("elementwise", r"^triton_poi_"),
    ("normalization", r"^triton_(red|per)_.*(_norm|var_mean|mean.*rsqrt)"),
    ("softmax", r"^triton_(red|per)_.*(softmax|nll_loss)"),
    ("reduction", r"^triton_(red|per)_"),
    (
        "attention",
        r"flash(?!infer)|fmha|attn|attention|sdpa|paged_kv|flashinfer.*(prefill|decode|cascade)|sage_(fwd|bwd|attn)",
    ),
    # AOTriton's backward of attention.
    ("attention", r"^bwd_(preprocess|kernel_(fuse|dk_dv|dq))"),
    # Layout changes around a convolution move data, whoever calls them.
    ("copy", r"nchw_?to|nhwc_?to|nchw2nhwc|nhwc2nchw|batched_transpose|im2d?2?col|col2im"),
    (
        "convolution",
        r"conv(?!ert)|fprop|dgrad|wgrad|winograd|miopensp3|igemm|fft2d|[\dshi]cudnn_",
    ),
    # FBGEMM's sparse kernels carry its name; those of the embedding's backward pass name the optimizer too.
    (
        "embedding",
        r"split_embedding|(?<!rotary_)embedding|permute_(2d|indices|pooled)|pooled_emb|bounds_check|linearize_index"
        r"|bucketize|offsets_range"
        r"|compute_grad_weight|partials_per_segment|\btbe|_tbe",
    ),
    (
        "gemm",
        r"(?<!fb)gemm|cijk_|cutlass(?!::\w+_t\b)|cublas|matmul|_mm_|gemv|split_?k|spltk|nvjet|xmma|wmma|hipblaslt"
        r"|dot_kernel|(^|_)mm(_|$)|^triton_tem_|fused_moe_kernel|fmoe",
    ),
    ("rnn", r"lstm|(\b|_)gru|rnn"),
    (
        "normalization",
        r"batch_?norm|bn_(fw|bw)|layer_?norm|rms_?norm|group_?norm|norm_kernel|norm_fwd|norm_bwd|bnorm|welford"
        r"|gammabeta|rowwise_?moments",
    ),
    ("softmax", r"softmax|cross_?entropy|nll_?(loss|criterion)"),
    ("embedding", r"lookup|index_?(select|put|add|copy|kernel|elementwise)|gather|scatter|indexing|sort"),
    ("optimizer", r"adam|sgd|lamb(?!da)|multi_?tensor|foreach|optimizer|adagrad"),
    ("pooling", r"pool"),
    ("dropout", r"dropout|philox|distribution|random|bernoulli"),
    ("reduction", r"reduce|sum_|_sum|argmax|cumsum|scan|topk"),
    ("copy", r"copy|memcpy|memset|fill|catarray|concat|(^|_)cat(_|$)|transpose|clone|zero|reshape_and_cache|store_?kv"),
    (
        "elementwise",
        r"elementwise|pointwise|triton_|vectorized|relu|gelu|silu|sigmoid|tanh|add|mul|activation|op_tensor|subtensorop"
        r"|scalepackedtensor|act_and_mul|rope|rotary|quant|fp8",
    ),
)
_COMPILED = tuple((name, re.compile(pattern, re.IGNORECASE | re.DOTALL)) for name, pattern in _PATTERNS)
_OTHER = "other"

#: Every class that `classify` can return.
CLASSES: tuple[str, ...] = (*dict.fromkeys(name for name, _ in _PATTERNS), _OTHER)

#: Classes whose large kernels are bound by arithmetic rather than by memory.
COMPUTE_BOUND = frozenset({"gemm", "convolution", "attention", "rnn"})


def classify(name: str) -> str:
    """Return the class of a kernel.

    Parameters
    ----------
    name : str
        Name of the kernel, as the profiler writes it.

    Examples
    --------
    >>> classify("ncclDevKernel_Generic(ncclDevComm*)"), classify("ampere_sgemm_128x64_nn")
    ('collective', 'gemm')
    """
    return next((label for label, pattern in _COMPILED if pattern.search(name)), _OTHER)


def is_collective(name: str) -> bool:
    """Return whether a kernel belongs to a communication library.

    Parameters
    ----------
    name : str
        Name of the kernel, as the profiler writes it.

    Examples
    --------
    >>> is_collective("void at::native::reduce_kernel<512>")
    False
    """
    return _COMPILED[0][1].search(name) is not None
