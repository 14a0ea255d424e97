"""The class of kernels by name: names as profilers of NVIDIA and AMD write them, shortened, most from real traces."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from profilers.ingest.pipeline import collect
from profilers.trace.arrays import integers, strings
from profilers.trace.kernels import CLASSES, COLLECTIVE, COMPUTE_BOUND, classify, is_collective

AT = "void at::native::"
ANON = AT + "(anonymous namespace)::"
LAMBDA = "(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#4}"
NAMES = {
    "collective": [
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
    ],
    "gemm": [
        "ampere_sgemm_128x64_nn",
        "ampere_fp16_s16816gemm_fp16_128x64_ldg8_relu_f2f_stages_32x6_tn",
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>(cutlass_80_tensorop::Params)",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel__5x_cublas",
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32_MI16x16x1_SN_LDSB1_AFC1_AF0EM1_ADD_mul_relu",
        "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47GridwiseGemm_bk0mk1",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, cublasGemvParams<float>>",
        "void splitKreduce_kernel<float, float, float, float, true, false, false>(cublasSplitKParams<float>)",
        "void wvSpltK_hf_sml_<64, 4, 16, 8, 1, 4>(int, int, __half const*, __half const*, __half*, int)",
        "triton_tem_fused_addmm_relu_3",
        "fused_moe_kernel",
    ],
    "convolution": [
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*)",
        "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int, int, int)",
        "volta_scudnn_128x64_relu_interior_nn_v1",
        "cudnn_infer_maxwell_scudnn_128x64_relu_small_nn_v1",
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64",
        "miopenSp3AsmConv_v30_3_1_gfx9_fp16_dot2_edc_f2x3_stride1",
        "igemm_fwd_gtcx3_nhwc_fp16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2_ta1x8x2x1_1x4x1x64",
        "naive_conv_nonpacked_wrw_nchw_half_double_half",
    ],
    "attention": [
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, cutlass::bfloat16_t>>",
        "_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelINS_40BlockFmhaBatchPrefillPipeline",
        "_Z35paged_attention_ll4mi_reduce_kernelIDF16_Li128ELi128ELi512EEvPT_PKfS3_PKS0_PKii",
        "attn_fwd",
        "sage_fwd",
        "bwd_kernel_fuse",
    ],
    "normalization": [
        ANON + "vectorized_layer_norm_kernel<float, float>(int, float, float const*, float const*)",
        ANON + "GammaBetaBackwardCUDAKernel<float, float>(long, long, float const*, float const*)",
        ANON + "cuComputePartGradGammaBeta<float, float, false>(float const*, float const*, long, long)",
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float, cudnnTensorStruct)",
        "MIOpenBatchNormFwdTrainSpatial",
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib",
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*)",
        "triton_red_fused__to_copy_add_addmm_mean_mul_neg_pow_rsqrt_stack_sub_view_31",
    ],
    "softmax": [
        ANON + "cunn_SoftMaxForward<4, float, float, float, at::native::SoftMaxForwardEpilogue>(float*)",
        ANON + "nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*, float*, long*)",
        "void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*, float*, float*, long*)",
    ],
    "embedding": [
        "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<c10::Half, float>",
        "void fbgemm_gpu::permute_2D_data_kernel<false, int, int, decltype(nullptr)>(int, int, int, int const*)",
        "void permute_pooled_embs_kernel<float>(float const*, long const*, long const*, long const*, float*)",
        ANON + "indexSelectSmallIndex<c10::Half, long, unsigned int, 2, 2, -2>(at::cuda::detail::TensorInfo)",
        "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800, false>",
        AT + "vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)",
    ],
    "optimizer": [
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float, float, adamMode_t>",
        ANON + "multi_tensor_apply_kernel<at::native::TensorListMetadata<2>, at::native::BinaryOpListAlphaFunctor>",
    ],
    "pooling": [ANON + "max_pool_backward_nchw<float, float>(int, float const*, long const*, int, int, int)"],
    "dropout": [ANON + "fused_dropout_kernel_vec<c10::BFloat16, float, unsigned int, 1, 8, bool>(at::cuda::detail)"],
    "reduction": [
        AT + "reduce_kernel<128, 4, at::native::ReduceOp<float, at::native::sum_functor<float>::operator()" + LAMBDA,
        "void cub::DeviceScanKernel<cub::AgentScanPolicy<128, 15, int, (cub::BlockLoadAlgorithm)3>>",
        "triton_per_fused__to_copy_add_mean_mul_neg_stack_transpose_unbind_unsqueeze_view_15",
    ],
    "copy": [
        AT + "elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda" + LAMBDA,
        ANON + "CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*, at::native::CatArrInputTensorMetadata)",
        AT + "vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, at::detail::Array<char*, 1> >(int)",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>",
        "batched_transpose_16x32_half",
        "__amd_rocclr_fillBufferAligned.kd",
        "void vllm::reshape_and_cache_kernel<unsigned short, unsigned char, (vllm::Fp8KVCacheDataType)1>",
    ],
    "elementwise": [
        AT + "vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl" + LAMBDA,
        AT + "vectorized_elementwise_kernel<4, at::native::tanh_kernel_cuda" + LAMBDA,
        AT + "vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, at::detail::Array<char*, 3> >(int)",
        "triton_poi_fused_addmm_gelu_view_26",
        "triton_poi_fused_all_reduce_convolution_native_layer_norm_3",
        "triton__0d1d2d3d4d5d6d",
        "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_ES3_S5_EEEEvPS3_",
        "void rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*)",
        "void fbgemm_gpu::(anonymous namespace)::_FP8rowwise_to_float_cuda_kernel<float>(unsigned char const*)",
        "SubTensorOpWithScalar1d",
    ],
    "rnn": ["void LSTM_elementWise_fp<float, float, float>(int, int, float*)"],
    "other": ["", "saxpy(double *, double *, double *, double, int)", "at::cuda::spin_kernel(long)"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "label"), [(name, label) for label, names in NAMES.items() for name in names], ids=lambda text: text[:60]
)
def test_the_name_says_the_class(name: str, label: str) -> None:
    assert classify(name) == label
    assert is_collective(name) == (label == COLLECTIVE)


def test_every_class_has_a_real_name_and_stands_once() -> None:
    assert set(NAMES) == set(CLASSES)
    assert len(set(CLASSES)) == len(CLASSES)
    assert set(CLASSES) >= COMPUTE_BOUND


DATA = Path(__file__).parents[2] / "shared" / "data" / "traces" / "kineto"
#: Least share of the GPU time of a file, by class, read off its kernels' names by eye.
SHARES = {
    "tracelens/h100/gaunernst_bert-small-uncased.json.gz": {"gemm": 0.5, "elementwise": 0.05, "attention": 0.05},
    "tracelens/mi300/Falconsai_nsfw_image_detection.json.gz": {"gemm": 0.5, "normalization": 0.05},
    "misc/resnet50_v100_2021_schema.json.gz": {"convolution": 0.5, "normalization": 0.1, "elementwise": 0.05},
    "hta/dlrm128_sampled_rank0.json.gz": {"collective": 0.2, "embedding": 0.15},
}


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
@pytest.mark.parametrize("name", sorted(SHARES))
def test_real_files_spend_their_time_where_their_model_says(name: str) -> None:
    kernels = collect([DATA / name]).kernels
    time: Counter[str] = Counter()
    names = strings(kernels, "name")
    labels = [classify(name) for name in names]
    for label, duration in zip(labels, integers(kernels, "dur_ns"), strict=True):
        time[label] += int(duration)
    shares = {label: duration / time.total() for label, duration in time.items()}
    assert {label: shares.get(label, 0) > least for label, least in SHARES[name].items()} == dict.fromkeys(
        SHARES[name], True
    ), shares
    assert shares.get("other", 0) < 0.02, sorted(
        {name for name, label in zip(names, labels, strict=True) if label == "other"}
    )
    assert np.isclose(sum(shares.values()), 1)
