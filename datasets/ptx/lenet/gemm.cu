// Matrix products, and the unfolding of images that turns a convolution into one.
//
// im2col   columns[image][channel * 25 + ky * 5 + kx][y * out_width + x] = images[image][channel][y + ky][x + kx]
// gemm_nn  C = A B        A is rows x depths, B is depths x columns
// gemm_nt  C = A B^T      B is stored as columns x depths
// gemm_tn  C = A^T B      A is stored as depths x rows
//
// All matrices are row-major. Block index z counts the products of a batch. `stride_a`, `stride_b` and `stride_c` are
// the elements from one matrix to the next, 0 for a matrix that all products share.

#include "tiles.cuh"

enum { FILTER = 5 };

// A thread copies the 25 inputs of one output pixel and channel. Grid: x pixels of all channels, y images.
extern "C" __global__ void __launch_bounds__(128)
im2col(const float *__restrict__ images, float *__restrict__ columns, int channels, int height, int width)
{
    const int out_width = width - FILTER + 1;
    const int pixels = (height - FILTER + 1) * out_width;
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= channels * pixels)
        return;
    const int channel = index / pixels;
    const int pixel = index % pixels;
    const int plane = blockIdx.y * channels + channel;
    const float *input = images + (plane * height + pixel / out_width) * width + pixel % out_width;
    float *output = columns + plane * FILTER * FILTER * pixels + pixel;
#pragma unroll
    for (int ky = 0; ky < FILTER; ++ky)
#pragma unroll
        for (int kx = 0; kx < FILTER; ++kx)
            output[(ky * FILTER + kx) * pixels] = input[ky * width + kx];
}

template <bool TRANSPOSE_A, bool TRANSPOSE_B>
__device__ __forceinline__ void gemm(const float *a, const float *b, float *c, int rows, int columns, int depths)
{
    multiply_tile<!TRANSPOSE_A, TRANSPOSE_B>(
        depths,
        [=](int row, int k) {
            return row < rows && k < depths ? a[TRANSPOSE_A ? k * rows + row : row * depths + k] : 0.0f;
        },
        [=](int k, int column) {
            return column < columns && k < depths ? b[TRANSPOSE_B ? column * depths + k : k * columns + column] : 0.0f;
        },
        [=](int row, int column, float value) {
            if (row < rows && column < columns)
                c[row * columns + column] = value;
        });
}

extern "C" __global__ void __launch_bounds__(128)
gemm_nn(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, int rows, int columns,
        int depths, int stride_a, int stride_b, int stride_c)
{
    const int product = blockIdx.z;
    gemm<false, false>(a + product * stride_a, b + product * stride_b, c + product * stride_c, rows, columns, depths);
}

extern "C" __global__ void __launch_bounds__(128)
gemm_nt(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, int rows, int columns,
        int depths, int stride_a, int stride_b, int stride_c)
{
    const int product = blockIdx.z;
    gemm<false, true>(a + product * stride_a, b + product * stride_b, c + product * stride_c, rows, columns, depths);
}

extern "C" __global__ void __launch_bounds__(128)
gemm_tn(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, int rows, int columns,
        int depths, int stride_a, int stride_b, int stride_c)
{
    const int product = blockIdx.z;
    gemm<true, false>(a + product * stride_a, b + product * stride_b, c + product * stride_c, rows, columns, depths);
}
