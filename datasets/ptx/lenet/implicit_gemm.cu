// Convolution with 5 x 5 filters as a tiled matrix product whose operands are addressed in the images themselves.
//
// implicit_gemm_forward          output[outputs x pixels] = filters x unfolded image, for each image (block index z)
// implicit_gemm_weight_gradient  partial[image][outputs x taps] = output gradient x unfolded image^T
// implicit_gemm_input_gradient   input gradient[channels x pixels] = filters^T x unfolded output gradient
// sum_images                     gradient[i] = sum over images of partial[image][i]
//
// A tap is a channel and a position of the filter: channel * 25 + ky * 5 + kx. `height` and `width` are those of the
// layer's input. Images, filters and gradients are NCHW.

#include "tiles.cuh"

enum { FILTER = 5 };
enum { TAPS = FILTER * FILTER };

extern "C" __global__ void __launch_bounds__(128)
implicit_gemm_forward(const float *__restrict__ images, const float *__restrict__ filters, float *__restrict__ output,
                      int channels, int height, int width, int outputs)
{
    const int out_width = width - FILTER + 1;
    const int pixels = (height - FILTER + 1) * out_width;
    const int depths = channels * TAPS;
    const float *image = images + blockIdx.z * channels * height * width;
    float *result = output + blockIdx.z * outputs * pixels;
    multiply_tile<true, false>(
        depths,
        [=](int row, int k) { return row < outputs && k < depths ? filters[row * depths + k] : 0.0f; },
        [=](int k, int column) {
            if (column >= pixels || k >= depths)
                return 0.0f;
            const int y = column / out_width + k / FILTER % FILTER;
            const int x = column % out_width + k % FILTER;
            return image[(k / TAPS * height + y) * width + x];
        },
        [=](int row, int column, float value) {
            if (row < outputs && column < pixels)
                result[row * pixels + column] = value;
        });
}

extern "C" __global__ void __launch_bounds__(128)
implicit_gemm_weight_gradient(const float *__restrict__ images, const float *__restrict__ output_gradient,
                              float *__restrict__ partial, int channels, int height, int width, int outputs)
{
    const int out_width = width - FILTER + 1;
    const int pixels = (height - FILTER + 1) * out_width;
    const int taps = channels * TAPS;
    const float *image = images + blockIdx.z * channels * height * width;
    const float *gradient = output_gradient + blockIdx.z * outputs * pixels;
    float *result = partial + blockIdx.z * outputs * taps;
    multiply_tile<true, true>(
        pixels,
        [=](int row, int k) { return row < outputs && k < pixels ? gradient[row * pixels + k] : 0.0f; },
        [=](int k, int column) {
            if (column >= taps || k >= pixels)
                return 0.0f;
            const int y = k / out_width + column / FILTER % FILTER;
            const int x = k % out_width + column % FILTER;
            return image[(column / TAPS * height + y) * width + x];
        },
        [=](int row, int column, float value) {
            if (row < outputs && column < taps)
                result[row * taps + column] = value;
        });
}

extern "C" __global__ void __launch_bounds__(128)
implicit_gemm_input_gradient(const float *__restrict__ filters, const float *__restrict__ output_gradient,
                             float *__restrict__ input_gradient, int channels, int height, int width, int outputs)
{
    const int out_height = height - FILTER + 1;
    const int out_width = width - FILTER + 1;
    const int pixels = height * width;
    const int depths = outputs * TAPS;
    const float *gradient = output_gradient + blockIdx.z * outputs * out_height * out_width;
    float *result = input_gradient + blockIdx.z * channels * pixels;
    multiply_tile<true, false>(
        depths,
        [=](int row, int k) {
            return row < channels && k < depths ? filters[(k / TAPS * channels + row) * TAPS + k % TAPS] : 0.0f;
        },
        [=](int k, int column) {
            const int y = column / width - k / FILTER % FILTER;
            const int x = column % width - k % FILTER;
            if (column >= pixels || k >= depths || y < 0 || y >= out_height || x < 0 || x >= out_width)
                return 0.0f;
            return gradient[(k / TAPS * out_height + y) * out_width + x];
        },
        [=](int row, int column, float value) {
            if (row < channels && column < pixels)
                result[row * pixels + column] = value;
        });
}

extern "C" __global__ void __launch_bounds__(128)
sum_images(const float *__restrict__ partial, float *__restrict__ gradient, int images, int count)
{
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count)
        return;
    float sum = 0.0f;
#pragma unroll 4
    for (int image = 0; image < images; ++image)
        sum += partial[image * count + index];
    gradient[index] = sum;
}
