// Elementwise operators, softmax and layer normalisation with the grids of PyTorch 2, in FP32.
#define NEGATIVE_INFINITY __int_as_float(0xff800000)


// y = a + b; a thread adds 4 elements, a block of 128 threads 512.
extern "C" __global__ void add(float *y, const float *a, const float *b, int n) {
    int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i + 3 < n) {
        float4 u = *(const float4 *)(a + i), v = *(const float4 *)(b + i);
        *(float4 *)(y + i) = make_float4(u.x + v.x, u.y + v.y, u.z + v.z, u.w + v.w);
    } else {
        for (; i < n; i++) y[i] = a[i] + b[i];
    }
}

// y = x; as add.
extern "C" __global__ void copy(float *y, const float *x, int n) {
    int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i + 3 < n) {
        *(float4 *)(y + i) = *(const float4 *)(x + i);
    } else {
        for (; i < n; i++) y[i] = x[i];
    }
}

__device__ float warp_sum(float value) {
    for (int d = 16; d; d /= 2) value += __shfl_xor_sync(0xffffffff, value, d);
    return value;
}

__device__ float warp_max(float value) {
    for (int d = 16; d; d /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, d));
    return value;
}

// Softmax of rows of up to 1024 columns; a block of 32 x 4 threads has a row a warp, and keeps it in registers.
extern "C" __global__ void softmax_warp(float *y, const float *x, int rows, int columns) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    float kept[32], most = NEGATIVE_INFINITY, total = 0;
#pragma unroll
    for (int k = 0; k < 32; k++) {
        int i = threadIdx.x + 32 * k;
        kept[k] = i < columns ? x[(size_t)row * columns + i] : NEGATIVE_INFINITY;
        most = fmaxf(most, kept[k]);
    }
    most = warp_max(most);
#pragma unroll
    for (int k = 0; k < 32; k++) {
        kept[k] = expf(kept[k] - most);
        total += kept[k];
    }
    total = warp_sum(total);
#pragma unroll
    for (int k = 0; k < 32; k++) {
        int i = threadIdx.x + 32 * k;
        if (i < columns) y[(size_t)row * columns + i] = kept[k] / total;
    }
}

__shared__ float partial[32];

__device__ float block_reduce(float value, bool is_max) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    value = is_max ? warp_max(value) : warp_sum(value);
    __syncthreads();
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    value = lane < warps ? partial[lane] : (is_max ? NEGATIVE_INFINITY : 0.0f);
    return is_max ? warp_max(value) : warp_sum(value);
}

// Softmax of a row a block, which reads it three times.
extern "C" __global__ void softmax_block(float *y, const float *x, int columns) {
    const float *from = x + (size_t)blockIdx.x * columns;
    float *to = y + (size_t)blockIdx.x * columns, most = NEGATIVE_INFINITY, total = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, from[i]);
    most = block_reduce(most, true);
    for (int i = threadIdx.x; i < columns; i += blockDim.x) total += expf(from[i] - most);
    total = block_reduce(total, false);
    for (int i = threadIdx.x; i < columns; i += blockDim.x) to[i] = expf(from[i] - most) / total;
}

struct Moments {
    float mean, squares, count;
};

// Welford's update and combination of mean and sum of squared differences, as PyTorch does them.
__device__ void add_value(Moments &m, float value) {
    float difference = value - m.mean;
    m.count += 1;
    m.mean += difference * (1.0f / m.count);
    m.squares += difference * (value - m.mean);
}

__device__ Moments combined(Moments a, Moments b) {
    float count = a.count + b.count, difference = b.mean - a.mean;
    if (count == 0) return Moments{0, 0, 0};
    float share = 1.0f / count, left = a.count * share, right = b.count * share;
    return Moments{left * a.mean + right * b.mean,
                   a.squares + b.squares + difference * difference * left * right * count, count};
}

__shared__ Moments moments[4];

// Layer normalisation of a row a block of 32 x 4 threads; columns are a multiple of 4.
extern "C" __global__ void layer_norm(
    float *y, float *mean, float *scale, const float *x, const float *gamma, const float *beta, int columns,
    float epsilon) {
    const float4 *from = (const float4 *)(x + (size_t)blockIdx.x * columns);
    float4 *to = (float4 *)(y + (size_t)blockIdx.x * columns);
    int thread = threadIdx.y * 32 + threadIdx.x;
    Moments own = {0, 0, 0};
    for (int i = thread; i < columns / 4; i += 128) {
        float4 v = from[i];
        add_value(own, v.x);
        add_value(own, v.y);
        add_value(own, v.z);
        add_value(own, v.w);
    }
    for (int d = 16; d; d /= 2) {
        Moments other = {__shfl_down_sync(0xffffffff, own.mean, d), __shfl_down_sync(0xffffffff, own.squares, d),
                         __shfl_down_sync(0xffffffff, own.count, d)};
        own = combined(own, other);
    }
    if (threadIdx.x == 0) moments[threadIdx.y] = own;
    __syncthreads();
    own = combined(combined(moments[0], moments[1]), combined(moments[2], moments[3]));
    float m = own.mean, s = rsqrtf(own.squares / columns + epsilon);
    for (int i = thread; i < columns / 4; i += 128) {
        float4 v = from[i], g = ((const float4 *)gamma)[i], b = ((const float4 *)beta)[i];
        to[i] = make_float4(
            (v.x - m) * s * g.x + b.x, (v.y - m) * s * g.y + b.y, (v.z - m) * s * g.z + b.z,
            (v.w - m) * s * g.w + b.w);
    }
    if (thread == 0) {
        mean[blockIdx.x] = m;
        scale[blockIdx.x] = s;
    }
}
