// Kernels that measure one property of a device each.

// Follows a chain of indices in global memory: each load needs the one before.
extern "C" __global__ void chase(unsigned *end, const unsigned *next, int steps) {
    unsigned at = 0;
#pragma unroll 1
    for (int k = 0; k < steps; k++) at = next[at];
    *end = at;
}

__shared__ unsigned shared_next[1024];

// The same in shared memory.
extern "C" __global__ void chase_shared(unsigned *end, const unsigned *next, int steps) {
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) shared_next[i] = next[i];
    __syncthreads();
    unsigned at = 0;
#pragma unroll 1
    for (int k = 0; k < steps; k++) at = shared_next[at];
    *end = at;
}

// Multiply-adds of 8 independent chains a thread, 64 in a turn of the loop.
extern "C" __global__ void multiply_add(float *y, float a, float b, int turns) {
    float v[8];
    for (int k = 0; k < 8; k++) v[k] = threadIdx.x + k;
#pragma unroll 1
    for (int turn = 0; turn < turns; turn++) {
#pragma unroll
        for (int step = 0; step < 8; step++)
#pragma unroll
            for (int k = 0; k < 8; k++) v[k] = fmaf(v[k], a, b);
    }
    float total = 0;
    for (int k = 0; k < 8; k++) total += v[k];
    y[blockIdx.x * blockDim.x + threadIdx.x] = total;
}

// Each warp reads a line of 128 bytes in each turn; lines are `stride` elements apart.
extern "C" __global__ void stride(float *y, const float *x, int stride, int turns) {
    int thread = blockIdx.x * blockDim.x + threadIdx.x;
    float total = 0;
    for (int turn = 0; turn < turns; turn++)
        total += x[(size_t)(thread / 32 + turn * (gridDim.x * blockDim.x / 32)) * stride + thread % 32];
    y[thread] = total;
}
