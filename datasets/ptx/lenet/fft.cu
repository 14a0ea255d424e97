// Convolution with 5 x 5 filters by Fourier transforms of 32 x 32 (a whole image) or 16 x 16 (overlapping tiles).
//
// forward_fft_SIZE   spectra[image][tile][plane] = transform of a tile of SIZE x SIZE of a plane, zeros outside it
// multiply_spectra   output[row][o] = sum over channels c of images[row][c] x conjugate of filters[o][c]
// inverse_fft_SIZE   plane = inverse transform, of which each tile gives its first (SIZE - 4) x (SIZE - 4) pixels
//
// Tiles start every SIZE - 4 pixels (overlap-save), so that no pixel which wraps around is used. Real planes have a
// Hermitian spectrum: only columns 0 to SIZE / 2 are stored. Transforms are radix 2 in shared memory.

enum { OVERLAP = 4 };

// Cosine and sine of -2 pi k / 32.
__constant__ float2 TWIDDLES[16] = {
    {1.0f, 0.0f}, {0.98078528f, -0.195090322f}, {0.923879533f, -0.382683432f},
    {0.831469612f, -0.555570233f}, {0.707106781f, -0.707106781f}, {0.555570233f, -0.831469612f},
    {0.382683432f, -0.923879533f}, {0.195090322f, -0.98078528f}, {0.0f, -1.0f},
    {-0.195090322f, -0.98078528f}, {-0.382683432f, -0.923879533f}, {-0.555570233f, -0.831469612f},
    {-0.707106781f, -0.707106781f}, {-0.831469612f, -0.555570233f}, {-0.923879533f, -0.382683432f},
    {-0.98078528f, -0.195090322f},
};

template <int SIZE>
__device__ __forceinline__ int bit_reversed(int index)
{
    return __brev(index) >> (SIZE == 32 ? 27 : 28);
}

// Transform `lines` lines of SIZE elements that stand in bit-reversed order. SIGN is 1 forward, -1 inverse.
template <int SIZE, int SIGN>
__device__ __forceinline__ void transform_lines(float2 *data, int lines, int line_stride, int stride)
{
#pragma unroll
    for (int half = 1; half < SIZE; half *= 2) {
#pragma unroll 1
        for (int index = threadIdx.x; index < lines * SIZE / 2; index += SIZE * 8) {
            const int pair = index % (SIZE / 2);
            const int offset = pair % half;
            float2 *low = data + index / (SIZE / 2) * line_stride + (2 * pair - offset) * stride;
            float2 *high = low + half * stride;
            const float2 twiddle = TWIDDLES[offset * (16 / half)];
            const float2 first = *low;
            const float2 second = *high;
            const float real = second.x * twiddle.x - SIGN * second.y * twiddle.y;
            const float imaginary = second.y * twiddle.x + SIGN * second.x * twiddle.y;
            *low = make_float2(first.x + real, first.y + imaginary);
            *high = make_float2(first.x - real, first.y - imaginary);
        }
        __syncthreads();
    }
}

// Block: SIZE * 8 threads. Grid: x planes of an image, y images, z tiles of an image (`tiles` of them a row).
template <int SIZE>
__device__ __forceinline__ void forward_fft(const float *planes, float2 *spectra, int height, int width, int tiles)
{
    __shared__ float2 data[SIZE][SIZE + 1];
    constexpr int KEPT = SIZE / 2 + 1;
    const int plane = blockIdx.y * gridDim.x + blockIdx.x;
    const int first_y = blockIdx.z / tiles * (SIZE - OVERLAP);
    const int first_x = blockIdx.z % tiles * (SIZE - OVERLAP);
#pragma unroll
    for (int index = threadIdx.x; index < SIZE * SIZE; index += SIZE * 8) {
        const int y = index / SIZE, x = index % SIZE;
        const bool inside = first_y + y < height && first_x + x < width;
        const float value = inside ? planes[(plane * height + first_y + y) * width + first_x + x] : 0.0f;
        data[bit_reversed<SIZE>(y)][bit_reversed<SIZE>(x)] = make_float2(value, 0.0f);
    }
    __syncthreads();
    transform_lines<SIZE, 1>(&data[0][0], SIZE, SIZE + 1, 1);
    transform_lines<SIZE, 1>(&data[0][0], KEPT, 1, SIZE + 1);
    float2 *output = spectra + ((blockIdx.y * gridDim.z + blockIdx.z) * gridDim.x + blockIdx.x) * SIZE * KEPT;
    for (int index = threadIdx.x; index < SIZE * KEPT; index += SIZE * 8)
        output[index] = data[index / KEPT][index % KEPT];
}

// Block and grid as of forward_fft; `height` and `width` are those of the result.
template <int SIZE>
__device__ __forceinline__ void inverse_fft(const float2 *spectra, float *planes, int height, int width, int tiles)
{
    constexpr int KEPT = SIZE / 2 + 1;
    __shared__ float2 spectrum[SIZE][KEPT];
    __shared__ float2 data[SIZE][SIZE + 1];
    const float2 *input = spectra + ((blockIdx.y * gridDim.z + blockIdx.z) * gridDim.x + blockIdx.x) * SIZE * KEPT;
    for (int index = threadIdx.x; index < SIZE * KEPT; index += SIZE * 8)
        spectrum[bit_reversed<SIZE>(index / KEPT)][index % KEPT] = input[index];
    __syncthreads();
    transform_lines<SIZE, -1>(&spectrum[0][0], KEPT, 1, KEPT);
#pragma unroll
    for (int index = threadIdx.x; index < SIZE * SIZE; index += SIZE * 8) {
        const int y = index / SIZE, x = index % SIZE;
        const bool stored = x < KEPT;
        const float2 value = spectrum[y][stored ? x : SIZE - x];
        data[y][bit_reversed<SIZE>(x)] = make_float2(value.x, stored ? value.y : -value.y);
    }
    __syncthreads();
    transform_lines<SIZE, -1>(&data[0][0], SIZE, SIZE + 1, 1);
    const int plane = blockIdx.y * gridDim.x + blockIdx.x;
    const int first_y = blockIdx.z / tiles * (SIZE - OVERLAP);
    const int first_x = blockIdx.z % tiles * (SIZE - OVERLAP);
#pragma unroll
    for (int index = threadIdx.x; index < SIZE * SIZE; index += SIZE * 8) {
        const int y = index / SIZE, x = index % SIZE;
        if (y < SIZE - OVERLAP && x < SIZE - OVERLAP && first_y + y < height && first_x + x < width)
            planes[(plane * height + first_y + y) * width + first_x + x] = data[y][x].x * (1.0f / (SIZE * SIZE));
    }
}

extern "C" __global__ void __launch_bounds__(256)
forward_fft_32(const float *__restrict__ planes, float2 *__restrict__ spectra, int height, int width, int tiles)
{
    forward_fft<32>(planes, spectra, height, width, tiles);
}

extern "C" __global__ void __launch_bounds__(256)
inverse_fft_32(const float2 *__restrict__ spectra, float *__restrict__ planes, int height, int width, int tiles)
{
    inverse_fft<32>(spectra, planes, height, width, tiles);
}

extern "C" __global__ void __launch_bounds__(128)
forward_fft_16(const float *__restrict__ planes, float2 *__restrict__ spectra, int height, int width, int tiles)
{
    forward_fft<16>(planes, spectra, height, width, tiles);
}

extern "C" __global__ void __launch_bounds__(128)
inverse_fft_16(const float2 *__restrict__ spectra, float *__restrict__ planes, int height, int width, int tiles)
{
    inverse_fft<16>(spectra, planes, height, width, tiles);
}

// A thread computes one frequency of 4 rows and 2 outputs. Grid: x frequencies, y rows, z outputs.
extern "C" __global__ void __launch_bounds__(256)
multiply_spectra(const float2 *__restrict__ images, const float2 *__restrict__ filters, float2 *__restrict__ output,
                 int rows, int channels, int outputs, int frequencies)
{
    constexpr int ROWS = 4, OUTPUTS = 2;
    const int frequency = blockIdx.x * blockDim.x + threadIdx.x;
    if (frequency >= frequencies)
        return;
    const int row = blockIdx.y * ROWS;
    const int out = blockIdx.z * OUTPUTS;
    float2 sums[ROWS][OUTPUTS] = {};
#pragma unroll 1
    for (int channel = 0; channel < channels; ++channel) {
        float2 filter[OUTPUTS];
#pragma unroll
        for (int j = 0; j < OUTPUTS; ++j)
            filter[j] = filters[(min(out + j, outputs - 1) * channels + channel) * frequencies + frequency];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const float2 image = images[(min(row + i, rows - 1) * channels + channel) * frequencies + frequency];
#pragma unroll
            for (int j = 0; j < OUTPUTS; ++j) {
                sums[i][j].x += image.x * filter[j].x + image.y * filter[j].y;
                sums[i][j].y += image.y * filter[j].x - image.x * filter[j].y;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < OUTPUTS; ++j)
            if (row + i < rows && out + j < outputs)
                output[((row + i) * outputs + out + j) * frequencies + frequency] = sums[i][j];
}
