"""Classes of kernels, by name: `classify`, and the table of rules behind it, `RULES`.

The classes are those of the BERT characterisation (arXiv 2104.08335, section 3), and convolution, embedding, sorting
and communication. The name decides, since it is the only property that every profiler writes. Rules are tried in their
order, and the first whose pattern occurs in the name gives the class: a special rule stands before a general one.
"""

import fnmatch
import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import read_toml, typed_table

COLLECTIVE = "collective"
_OTHER = "other"

#: Every class that `classify` can return.
CLASSES: tuple[str, ...] = (
    *(COLLECTIVE, "elementwise", "normalization", "softmax", "reduction", "attention", "copy", "convolution"),
    *("embedding", "gemm", "rnn", "optimizer", "pooling", "dropout", "sort", _OTHER),
)

#: Classes whose large kernels are bound by arithmetic rather than by memory.
COMPUTE_BOUND = frozenset({"gemm", "convolution", "attention", "rnn"})


class Rule(NamedTuple):
    """The class of the kernels whose names contain a pattern.

    Parameters
    ----------
    class_ : str
        One of `CLASSES`.
    pattern : str
        Regular expression that occurs anywhere in the name, whatever its case.
    example : str
        Name of a kernel, or its beginning, that the rule is for.
    why : str
        Library that writes such names, and why the class is theirs.
    """

    class_: str
    pattern: str
    example: str
    why: str


#: The rules, in the order in which they are tried.
RULES: tuple[Rule, ...] = (
    # Inductor names a fused kernel after every operator in it, those around a GEMM or a collective included, so its
    # prefix tells more than the words behind it.
    Rule("attention", r"^triton_tem_.*(?:flex_attention|scaled_dot_product)", "triton_tem_fused_flex_attention_0",
         "Inductor's template of attention"),
    Rule("convolution", r"^triton_tem_(?!.*mm).*convolution", "triton_tem_fused_convolution_3",
         "Inductor's template of a convolution"),
    Rule("gemm", r"^triton_tem_|^triton_(?:b|add)?mm_", "triton_tem_fused_addmm_relu_3",
         "Inductor's template of a matrix product, with what is fused into its end"),
    Rule("copy", r"^triton_poi_fused(?:_+(?:to_copy|clone|copy|t|transpose|permute|view|unsafe_view|reshape|cat|stack"
         r"|slice|select|split|unbind|expand|squeeze|unsqueeze|empty_like|lift_fresh|constant_pad_nd))+_\d+$",
         "triton_poi_fused__to_copy_t_8", "Inductor: every fused operator moves or converts data, and none computes"),
    Rule("elementwise", r"^triton_(?:poi|unk)_|^triton__\d", "triton_poi_fused_addmm_gelu_view_26",
         "Inductor's pointwise kernels; a GEMM in the name ran before, in a library"),
    Rule("optimizer", r"^triton_for_", "triton_for_fused_0", "Inductor's loop over the tensors of an optimizer"),
    Rule("sort", r"^triton_(?:red|per)_.*_(?:arg)?(?:sort|topk)_", "triton_per_fused_sort_0",
         "Inductor's sort of rows"),
    Rule("normalization", r"^triton_(?:red|per)_.*(?:(?<!vector)_norm|var_mean|mean.*rsqrt)",
         "triton_red_fused_add_mean_mul_pow_rsqrt_0", "Inductor: a row's moments, and the row scaled by them"),
    Rule("softmax", r"^triton_(?:red|per)_.*(?:softmax|nll_loss)", "triton_red_fused__log_softmax_mul_sub_view_41",
         "Inductor: a loss or softmax over a row"),
    Rule("reduction", r"^triton_(?:red|per|split_scan)_", "triton_red_fused_mul_sigmoid_sum_52",
         "Inductor: any other reduction"),
    # Applications name kernels after their own steps, which sound like those of libraries.
    Rule(_OTHER, r"^(?:void )?(?:gunrock::|kokkos::(?!.*(?:view_?fill|view_?copy|parallel_?reduce|parallel_?scan)))",
         "void gunrock::operators::advance::merge_path::merge_path_kernel<256, 11>",
         "frameworks for any code; a scatter or an addition there is the application's"),
    # Communication.
    Rule("reduction", r"get_dispatch_layout", "void deep_ep::layout::get_dispatch_layout<256, 4, 8>",
         "DeepEP: counts the tokens for each rank, on this rank alone"),
    Rule(COLLECTIVE, r"nccl|rccl|mscclpp|msccl|oneccl|hcclkernel", "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage)",
         "NCCL, RCCL, MSCCL++ and their kin name all their kernels"),
    Rule(COLLECTIVE, r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all(?!oc)|cross_device_(?:reduce|store)",
         "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>",
         "kernels of serving engines and of symmetric memory, named after the collective"),
    Rule(COLLECTIVE, r"deep_ep|(?:^|\W|_)ep::|\dep\d+(?:dispatch|combine|notify|cached)|\bmori::|\dmori\d|pplx::"
         r"|moe_?a2a|moe_?comm|(?:^|\W|_)a2a_|(?:inter|intra)node(?:_ll)?(?:::|\d)|(?:\b|\d)ep_?(?:dispatch|combine)"
         r"|(?:dispatch|combine)_?(?:intra|inter)_?node",
         "void deep_ep::internode_ll::dispatch<false, 7168>",
         "DeepEP, UCCL, MORI, pplx and TensorRT-LLM: tokens to the ranks of their experts and back"),
    Rule(COLLECTIVE, r"notify_(?:dispatch|combine)|clean_low_latency_buffer|(?:put|wait|signal)_signal"
         r"|signal_(?:wait|peers)|symm(?:etric)?_mem\w*barrier|multimem_|(?:^|\W)barrier_(?:kernel|all|on_stream)",
         "void deep_ep::intranode::notify_dispatch<8>",
         "waits for other ranks, and what tells them to go on, are communication"),
    Rule(COLLECTIVE, r"nvshmem|rocshmem|kuserbuffers|userbuffers", "nvshmemi_proxy_quiet_kernel",
         "one-sided transfers: NVSHMEM, rocSHMEM, Transformer Engine's user buffers"),
    # What a rank does with the tokens of its experts.
    Rule("copy", r"ep_(?:scatter|gather)|(?:pre|post)_reorder|(?:un)?permute_(?:kernel|with|triton)|(?:deepep|moe)_"
         r"(?:un)?permute|expandinputrows", "_fwd_kernel_ep_scatter_1",
         "SGLang, Transformer Engine, TensorRT-LLM: rows of tokens in the order of their experts, on one rank"),
    Rule("reduction", r"finalize_?moe", "void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<float>",
         "TensorRT-LLM: the weighted sum of the results of a token's experts"),
    # Attention.
    Rule("copy", r"reshape_and_cache|concat_and_cache|append_?paged_?kv|(?:set|store|write|copy)_(?:\w+_)?kv_?(?:cache"
         r"|buffer)|store_?kv|(?:copy|swap)_blocks|cp_gather_cache|create_\w*kv_indices",
         "void vllm::reshape_and_cache_flash_kernel<unsigned short, unsigned char>",
         "writes keys and values to the cache of a serving engine, beside the attention"),
    Rule("elementwise", r"rotary|(?:^|\W|_)rope(?:\W|_|$)|merge_attn_states|mergestates",
         "void vllm::rotary_embedding_kernel<c10::Half, true>", "turns queries and keys; it looks nothing up"),
    Rule("softmax", r"attn_softmax|(?:masked|triang)\w*softmax", "attn_softmax_v2<__half, 4>",
         "DeepSpeed, Apex and Megatron: the softmax of an attention that is not fused"),
    Rule("attention", r"flash(?!infer)|fmha|attn|attention|sdpa|paged_kv|flashinfer.*(?:prefill|decode|cascade|mla)"
         r"|sage_(?:fwd|bwd|attn)|batch_?(?:prefill|decode)_?with|(?:^|_|\W)mla_|\W+aiter\w*::pa_",
         "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>",
         "FlashAttention, CK, cuDNN, FlashInfer, xFormers, vLLM: fused attention"),
    Rule("attention", r"^bwd_(?:preprocess|kernel_(?:fuse|dk_dv|dq))|^_(?:fwd|bwd)_(?:grouped_)?kernel(?:_|$)",
         "bwd_kernel_fuse", "AOTriton, SGLang, xFormers: attention in Triton, named after its pass alone"),
    # Convolution.
    Rule("copy", r"nchw_?to|nhwc_?to|nchw2|nhwc2|cnhw2|batched_transpose|im2d?2?col|col2im",
         "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>",
         "cuDNN, MIOpen: changes the layout around a convolution"),
    Rule("gemm", r"[dw]grad_gemm", "wgrad_gemm_accum_fp32", "Apex, Megatron: gradients of a linear layer"),
    Rule("convolution", r"conv(?!ert)|fprop|dgrad|wgrad|winograd|miopensp3|igemm|fft2d|[\dshi]cudnn_",
         "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64",
         "cuDNN, MIOpen: a pass over a convolution, or an algorithm of one"),
    Rule("convolution", r"bwd_weight|bwd_data|compute\w*offsetskernel",
         "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47GridwiseGemm_bk0mk1",
         "CK: gradients of a convolution, computed as matrix products; cuDNN: their offsets"),
    # FBGEMM's sparse kernels carry the library's name, and those of the backward pass that of the optimizer.
    Rule("embedding", r"embedding|permute_(?:1d|2d|indices|pooled)|pooled_emb|bounds_check|linearize_index|bucketize"
         r"|offsets_range|compute_grad_weight|partials?_(?:per_)?segment|\btbe|_tbe|sum_and_scatter"
         r"|dense_representation",
         "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<c10::Half, float>",
         "FBGEMM, ATen: lookups, their gradients, and the sparse indices and pooled rows around them"),
    # Sorting, before the words sum, scan and gather in its kernels' names.
    Rule("sort", r"sort|bitonic|merge_?oddeven|top_?k(?!_?gatingsoftmax)|top_?p_?(?:sampling|renorm)|kth_?value"
         r"|moe_align_block|searchsorted",
         "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800>",
         "CUB, rocPRIM, ATen, samplers and routers: sorts, the largest of a row, searches in what is sorted"),
    Rule("copy", r"recat_copy", "void fbgemm_gpu::recat_copy_async_kernel<float>",
         "FBGEMM: brings pooled rows into the order of an exchange; it only moves data, so it can be fused with it"),
    # Conversions. A normalization that quantises its result stands before them.
    Rule("normalization", r"(?:rms|layer|group|batch)_?norm", "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64E",
         "every library; also with an addition before it and a conversion behind it"),
    Rule("copy", r"repack|weight_?shuffle|swizzle_(?:row|col|scal|block)", "gptq_marlin_repack_kernel<256, 4, true>",
         "Marlin, Transformer Engine: brings weights or scales into another layout"),
    Rule("elementwise", r"dequant|(?:^|_|\W|\d)quantize|quant_kernel|cast_(?:fp8|mxfp8)|_fp8_quant|qparam|fp8rowwise",
         "void fbgemm_gpu::_compute_FP8_quantize_cuda_kernel<float>",
         "converts to or from a narrow format"),
    # Matrix products.
    Rule("gemm", r"(?<!fb)gemm|cijk_|cutlass(?!::\w+_t\b)|cublas|hipblaslt|nvjet|xmma|wmma",
         "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "cuBLAS, CUTLASS, Tensile, hipBLASLt, CK, rocBLAS"),
    Rule("gemm", r"matmul|mul_mat|(?:^|_)b?mm(?:_|$)|_mm_|gemv|dot_kernel|(?:^|_)(?:trsm|trmm|syrk|herk)",
         "mul_mat_vec_q<(ggml_type)2, 1>", "any library that names the product"),
    Rule("gemm", r"split_?k|spltk", "void splitKreduce_kernel<float, float, float, float, true, false, false>",
         "the sums of a product that was split along K"),
    Rule("gemm", r"fused_moe_kernel|fmoe|marlin|machete|(?:^|_)awq_|gptq|wna16|[bs]gmv|lora_(?:shrink|expand)",
         "void marlin::Marlin<__nv_bfloat16, 256, 4, 16, 4>",
         "vLLM, AITER: products of experts, adapters and narrow weights"),
    Rule("gemm", r"(?:^|_)(?:xxt|xtx|aat|ba_plus_caa)(?:_|$)|(?:^|_)linear_(?:relu|gelu|silu|swiglu|act|fwd|bwd|forward"
         r"|backward|kernel)", "XXT_kernel",
         "Triton kernels of Muon and of fused linear layers: a product, with what is fused into its end"),
    Rule("rnn", r"lstm|(?:\b|_)gru|rnn|selective_scan|fused_recurrent|delta_rule|wkv|chunk_scan|state_passing",
         "void LSTM_elementWise_fp<float, float, float>", "cuDNN, MIOpen, Mamba, RWKV: recurrences over a sequence"),
    Rule("optimizer", r"multi_?tensor|foreach|lp_?norm_?cleanup|amp_update_scale|adam|sgd|lamb(?!da)|adagrad|optimizer",
         "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>",
         "Apex, ATen: one kernel over the tensors of a model; scales and norms of gradients"),
    Rule("normalization", r"bn_(?:fw|bw)|norm_kernel|norm_(?:fwd|bwd)|bnorm|l2norm|welford|gammabeta|rowwise_?moments"
         r"|instance_?norm|cucomputegradinput|(?:^|_|\W)ln_(?:fwd|bwd)",
         "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>",
         "cuDNN, ATen, Apex, Transformer Engine: moments of rows or channels, and their gradients"),
    Rule("softmax", r"softmax|cross_?entropy|nll_?(?:loss|criterion)|log_?sum_?exp",
         "void at::native::cunn_SoftMaxForward<4, float, float, float>",
         "ATen, Liger, Apex: softmax, and losses on it"),
    # Words that are common in names; from here on the order weighs more than the pattern.
    Rule("embedding", r"lookup|index_?(?:select|put|add|copy|kernel|elementwise|func)|gather|scatter|indexing",
         "void at::native::vectorized_gather_kernel<16, long>", "ATen: rows by index"),
    Rule("pooling", r"(?<!token_)(?<!mem)pool|upsample|interpolat|grid_sampl|roi_align|bicubic",
         "void at::native::max_pool_backward_nchw<float, float>", "windows of an image, averaged or interpolated"),
    Rule("dropout", r"dropout|philox|distribution|random|bernoulli|multinomial|curand|exponential_kernel",
         "void at::native::fused_dropout_kernel_vec<c10::BFloat16, float>", "random numbers, and what they mask"),
    Rule("reduction", r"reduce|sum_|_sum(?:_|\b)|arg_?max|arg_?min|cumsum|scan|histogram"
         r"|device(?:select|partition|runlength)",
         "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float>>", "sums, extremes, prefix sums, counts"),
    Rule("copy", r"copy|memcpy|memset|(?<!pre)fill|catarray|concat|(?:^|_)cat(?:_|$)|transpose|clone|zero"
         r"|(?:^|_)(?:re)?pad(?:_|$)|(?:reflection|replication|constant)_pad|repeat_?interleave|compute_cuda_kernel<|jagged_to|to_jagged"
         r"|(?:flip|roll)_cuda", "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>",
         "moves, converts or sets data; ATen's `compute_cuda_kernel` repeats elements"),
    Rule("elementwise", r"elementwise|pointwise|element_?wise|vectorized|unrolled|functor|relu|gelu|silu|swish|swiglu"
         r"|geglu|(?:^|_|\d)glu_|sigmoid|tanh|activation|act_and_mul|gated_act|op_?(?:\dd)?tensor|subtensorop|triu_tril|scalepackedtensor"
         r"|quant|fp8", "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>",
         "ATen, MIOpen, Triton: each element by itself"),
    Rule("elementwise", r"(?:^|[^a-z])[sdczh]?(?:add|addition|sub|subtract|mul|multiply|div|divide|pow|sqrt|clamp|where"
         r"|axpy|scal|arange|tril_indices|autocast_to|position|future_token_ids)(?![a-z])",
         "saxpy(double *, double *, double *, double, int)", "kernels named after their arithmetic"),
    Rule("elementwise", r"(?:^|_)fusion(?:_|$)|nvfuser_pointwise|triton_", "loop_add_fusion_3",
         "XLA, nvFuser, Triton: fused code whose name tells no more"),
)  # fmt: skip


#: Characters of a name that count. Names of templates are longer, and their first words say what they are.
_LENGTH = 8192


@cache
def _compiled() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the rules as (class, compiled pattern), with one pattern for successive rules of a class."""
    runs = [(name, [rule.pattern for rule in run]) for name, run in groupby(RULES, key=lambda rule: rule.class_)]
    return tuple((name, re.compile("|".join(patterns), re.IGNORECASE | re.DOTALL)) for name, patterns in runs)


class ClassRule(NamedTuple):
    """A user's own rule, which comes before `RULES`: the class of the kernels whose whole name fits a pattern.

    Parameters
    ----------
    pattern : str
        Name in which ``*`` stands for any text and ``?`` for one character.
    class_ : str
        One of `CLASSES`.
    """

    pattern: str
    class_: str

    def fits(self, name: str) -> bool:
        """Return whether the whole name of a kernel fits the pattern."""
        return _matcher(self.pattern).match(name, 0, _LENGTH) is not None


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> re.Pattern[str]:
    # Brackets are common in names of kernels, so they stand for themselves.
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))


def classify(name: str, rules: Sequence[ClassRule] = ()) -> str:
    """Return the class of a kernel.

    Parameters
    ----------
    name : str
        Name of the kernel, as the profiler writes it.
    rules : sequence of ClassRule
        A user's own rules, which come first.

    Examples
    --------
    >>> classify("ncclDevKernel_Generic(ncclDevComm*)"), classify("ampere_sgemm_128x64_nn")
    ('collective', 'gemm')
    >>> classify("blur_kernel"), classify("blur_kernel", [ClassRule("blur_*", "convolution")])
    ('other', 'convolution')
    """
    if (label := class_by_rules(name, rules)) is not None:
        return label
    return next((label for label, pattern in _compiled() if pattern.search(name, 0, _LENGTH)), _OTHER)


def class_by_rules(name: str, rules: Sequence[ClassRule]) -> str | None:
    """Return the class of a kernel by a user's own rules, or None if none fits.

    Parameters
    ----------
    name : str
        Name of the kernel, as the profiler writes it.
    rules : sequence of ClassRule
        The rules; the first that fits counts.
    """
    return next((rule.class_ for rule in rules if rule.fits(name)), None)


def is_collective(name: str, rules: Sequence[ClassRule] = ()) -> bool:
    """Return whether a kernel belongs to a communication library.

    Parameters
    ----------
    name : str
        Name of the kernel, as the profiler writes it.
    rules : sequence of ClassRule
        A user's own rules, which come first.

    Examples
    --------
    >>> is_collective("void at::native::reduce_kernel<512>")
    False
    """
    return classify(name, rules) == COLLECTIVE


#: Most rules of a file, and most characters of a pattern; such files are written by hand.
_MOST_RULES, _LONGEST_PATTERN = 1000, 500
_LAYOUT = '[[classes]] tables with pattern = "NAME*" and class = "gemm"'


class _RuleTable(msgspec.Struct, forbid_unknown_fields=True, rename={"class_": "class"}):
    """One rule of a file."""

    pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST_PATTERN)]
    class_: str


def read_class_rules(path: str | PathLike[str]) -> tuple[ClassRule, ...]:
    """Read a user's own classes of kernels.

    Parameters
    ----------
    path : str or path
        TOML file: tables ``[[classes]]``, each with ``pattern`` (with ``*`` and ``?``) and ``class``.

    Raises
    ------
    NotFoundError
        The file is missing, or a rule names an unknown class; the message offers near names.
    InvalidInputError
        The file is no TOML, or a rule lacks a pattern or a class, or has another key. The message counts rules from 1.
    """
    path = Path(path)
    content = read_toml(path, "classes of kernels")
    rows = content.get("classes")
    if set(content) != {"classes"} or not isinstance(rows, list) or not rows:
        raise InvalidInputError(f"{path}: a file of classes holds {_LAYOUT}, and nothing else")
    if len(rows) > _MOST_RULES:
        raise InvalidInputError(f"{path}: {len(rows)} rules; at most {_MOST_RULES} are read")
    return tuple(_class_rule(row, f"{path}: rule {number}") for number, row in enumerate(rows, 1))


def _class_rule(row: Any, where: str) -> ClassRule:
    """Return one table of a file as a rule."""
    table = typed_table(row, _RuleTable, where)
    if table.class_ not in CLASSES:
        near = ", ".join(get_close_matches(table.class_, CLASSES, 3, 0.5) or CLASSES)
        raise NotFoundError(f"{where}: no class of kernels is called {table.class_[:60]!r}; near names: {near}")
    return ClassRule(table.pattern, table.class_)


def check_rules(rules: Sequence[ClassRule], names: Collection[str]) -> None:
    """Check that a user's own rules have an effect: at least one of them fits a kernel.

    Parameters
    ----------
    rules : sequence of ClassRule
        The rules.
    names : collection of str
        Names of the kernels of a trace.

    Raises
    ------
    InvalidInputError
        None fits; the message lists near names.
    """
    if not rules or any(class_by_rules(name, rules) is not None for name in names):
        return
    pattern = rules[0].pattern
    near = get_close_matches(pattern, names, 3, 0.3) or sorted(names)[:3]
    listed = ", ".join(repr(name[:80]) for name in near) or "none: the trace has no kernel"
    raise InvalidInputError(
        f"no rule of --classes fits a kernel of the trace (the first pattern is {pattern!r}; near names: {listed}); a "
        "pattern fits whole names, with * for any text"
    )
