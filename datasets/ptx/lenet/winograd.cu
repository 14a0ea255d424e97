// Convolution with 5 x 5 filters by Winograd's minimal filtering F(2 x 2, 5 x 5): tiles of 6 x 6 give 2 x 2 outputs.
//
// winograd_fused             transforms, products over channels and inverse transform in one kernel
// winograd_transform_images  transformed[f][channel][tile], f = 0 to 35
// winograd_transform_filters transformed[f][output][channel]
// winograd_transform_back    output from products[f][output][tile]; gemm_nn computes the 36 products between
//
// Tiles are counted over all images, row by row. The points of interpolation are 0, 1, -1, 2, -2 and infinity. Lavin
// and Gray (arXiv 1509.09308) give the method.

enum { FILTER = 5 };
enum { TILE = 6 };
enum { ELEMENTS = TILE * TILE };

struct TileShape {
    int height, width, out_height, out_width, tile_columns, tiles;
    __device__ __forceinline__ TileShape(int height_, int width_)
        : height(height_), width(width_), out_height(height_ - FILTER + 1), out_width(width_ - FILTER + 1),
          tile_columns((out_width + 1) / 2), tiles((out_height + 1) / 2 * tile_columns)
    {
    }
};

// Transform a line of 6 inputs.
__device__ __forceinline__ void transform_input(float *d, int stride)
{
    const float d0 = d[0], d1 = d[stride], d2 = d[2 * stride];
    const float d3 = d[3 * stride], d4 = d[4 * stride], d5 = d[5 * stride];
    const float even_1 = d4 - 4.0f * d2, odd_1 = d3 - 4.0f * d1;
    const float even_2 = d4 - d2, odd_2 = 2.0f * (d3 - d1);
    d[0] = 4.0f * d0 - 5.0f * d2 + d4;
    d[stride] = even_1 + odd_1;
    d[2 * stride] = even_1 - odd_1;
    d[3 * stride] = even_2 + odd_2;
    d[4 * stride] = even_2 - odd_2;
    d[5 * stride] = 4.0f * d1 - 5.0f * d3 + d5;
}

// Transform a line of 5 weights to 6 elements.
__device__ __forceinline__ void transform_weights(float *g, int stride)
{
    const float g0 = g[0], g1 = g[stride], g2 = g[2 * stride], g3 = g[3 * stride], g4 = g[4 * stride];
    const float even_1 = (g0 + g2 + g4) * (-1.0f / 6.0f), odd_1 = (g1 + g3) * (-1.0f / 6.0f);
    const float even_2 = (g0 + 4.0f * g2 + 16.0f * g4) * (1.0f / 24.0f), odd_2 = (g1 + 4.0f * g3) * (1.0f / 12.0f);
    g[0] = 0.25f * g0;
    g[stride] = even_1 + odd_1;
    g[2 * stride] = even_1 - odd_1;
    g[3 * stride] = even_2 + odd_2;
    g[4 * stride] = even_2 - odd_2;
    g[5 * stride] = g4;
}

// Load the tile of 6 x 6 inputs of one channel and transform it.
__device__ __forceinline__ void load_input(float *d, const float *images, const TileShape &shape, int channels,
                                           int channel, int tile)
{
    const int image = tile / shape.tiles;
    const int first_y = tile % shape.tiles / shape.tile_columns * 2;
    const int first_x = tile % shape.tiles % shape.tile_columns * 2;
    const float *plane = images + (image * channels + channel) * shape.height * shape.width;
#pragma unroll
    for (int y = 0; y < TILE; ++y)
#pragma unroll
        for (int x = 0; x < TILE; ++x) {
            const bool inside = first_y + y < shape.height && first_x + x < shape.width;
            d[y * TILE + x] = inside ? plane[(first_y + y) * shape.width + first_x + x] : 0.0f;
        }
#pragma unroll
    for (int y = 0; y < TILE; ++y)
        transform_input(d + y * TILE, 1);
#pragma unroll
    for (int x = 0; x < TILE; ++x)
        transform_input(d + x, TILE);
}

// Load a filter of 5 x 5 weights and transform it to 6 x 6.
__device__ __forceinline__ void load_filter(float *g, const float *filter)
{
#pragma unroll
    for (int y = 0; y < FILTER; ++y) {
#pragma unroll
        for (int x = 0; x < FILTER; ++x)
            g[y * TILE + x] = filter[y * FILTER + x];
        transform_weights(g + y * TILE, 1);
    }
#pragma unroll
    for (int x = 0; x < TILE; ++x)
        transform_weights(g + x, TILE);
}

// Transform the products of a tile back and store its 2 x 2 outputs.
__device__ __forceinline__ void store_output(const float *m, float *output, const TileShape &shape, int outputs,
                                             int out, int tile)
{
    float lines[2][TILE];
#pragma unroll
    for (int x = 0; x < TILE; ++x) {
        const float *column = m + x;
        lines[0][x] = column[0] + column[TILE] + column[2 * TILE] + column[3 * TILE] + column[4 * TILE];
        lines[1][x] = column[TILE] - column[2 * TILE] + 2.0f * (column[3 * TILE] - column[4 * TILE]) + column[5 * TILE];
    }
    const int image = tile / shape.tiles;
    const int first_y = tile % shape.tiles / shape.tile_columns * 2;
    const int first_x = tile % shape.tiles % shape.tile_columns * 2;
    float *plane = output + (image * outputs + out) * shape.out_height * shape.out_width;
#pragma unroll
    for (int y = 0; y < 2; ++y) {
        const float *line = lines[y];
        const float left = line[0] + line[1] + line[2] + line[3] + line[4];
        const float right = line[1] - line[2] + 2.0f * (line[3] - line[4]) + line[5];
        float *pixels = plane + (first_y + y) * shape.out_width + first_x;
        if (first_y + y < shape.out_height) {
            pixels[0] = left;
            if (first_x + 1 < shape.out_width)
                pixels[1] = right;
        }
    }
}

// A block computes 16 tiles of 16 outputs, 4 channels at a time. Two warps transform inputs, two transform filters.
// Then each thread adds the products of one tile and two outputs. Grid: x tiles, y outputs.
extern "C" __global__ void __launch_bounds__(128)
winograd_fused(const float *__restrict__ images, const float *__restrict__ filters, float *__restrict__ output,
               int batch, int channels, int height, int width, int outputs)
{
    constexpr int TILES = 16, OUTPUTS = 16, CHANNELS = 4;
    __shared__ float input_tiles[ELEMENTS][CHANNELS * TILES];
    __shared__ float filter_tiles[ELEMENTS][CHANNELS * OUTPUTS];
    const TileShape shape(height, width);
    const int lane = threadIdx.x % 64;
    const int tile = blockIdx.x * TILES + threadIdx.x % TILES;
    const int first_output = blockIdx.y * OUTPUTS;
    const int pair = threadIdx.x / TILES;
    const bool takes_input = threadIdx.x < 64;
    float sums[2][ELEMENTS] = {};
#pragma unroll 1
    for (int first_channel = 0; first_channel < channels; first_channel += CHANNELS) {
        const int channel = first_channel + lane / 16;
        const int out = first_output + lane % 16;
        float transformed[ELEMENTS] = {};
        if (takes_input && channel < channels && tile < batch * shape.tiles)
            load_input(transformed, images, shape, channels, channel, tile);
        if (!takes_input && channel < channels && out < outputs)
            load_filter(transformed, filters + (out * channels + channel) * FILTER * FILTER);
        float *target = takes_input ? &input_tiles[0][lane] : &filter_tiles[0][lane];
#pragma unroll
        for (int f = 0; f < ELEMENTS; ++f)
            target[f * 64] = transformed[f];
        __syncthreads();
#pragma unroll 1
        for (int c = 0; c < min(CHANNELS, channels - first_channel); ++c) {
#pragma unroll
            for (int f = 0; f < ELEMENTS; ++f) {
                const float value = input_tiles[f][c * TILES + threadIdx.x % TILES];
                sums[0][f] += filter_tiles[f][c * OUTPUTS + pair] * value;
                sums[1][f] += filter_tiles[f][c * OUTPUTS + pair + OUTPUTS / 2] * value;
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const int out = first_output + pair + j * OUTPUTS / 2;
        if (out < outputs && tile < batch * shape.tiles)
            store_output(sums[j], output, shape, outputs, out, tile);
    }
}

// Grid: x tiles, y channels.
extern "C" __global__ void __launch_bounds__(128)
winograd_transform_images(const float *__restrict__ images, float *__restrict__ transformed, int batch, int channels,
                          int height, int width)
{
    const TileShape shape(height, width);
    const int tile = blockIdx.x * blockDim.x + threadIdx.x;
    const int channel = blockIdx.y;
    const int tiles = batch * shape.tiles;
    if (tile >= tiles)
        return;
    float d[ELEMENTS];
    load_input(d, images, shape, channels, channel, tile);
#pragma unroll
    for (int f = 0; f < ELEMENTS; ++f)
        transformed[(f * channels + channel) * tiles + tile] = d[f];
}

// Grid: x filters; `count` is their number, one for each output and channel.
extern "C" __global__ void __launch_bounds__(128)
winograd_transform_filters(const float *__restrict__ filters, float *__restrict__ transformed, int count)
{
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count)
        return;
    float g[ELEMENTS];
    load_filter(g, filters + index * FILTER * FILTER);
#pragma unroll
    for (int f = 0; f < ELEMENTS; ++f)
        transformed[f * count + index] = g[f];
}

// Grid: x tiles, y outputs; `height` and `width` are those of the layer's input.
extern "C" __global__ void __launch_bounds__(128)
winograd_transform_back(const float *__restrict__ products, float *__restrict__ output, int batch, int outputs,
                        int height, int width)
{
    const TileShape shape(height, width);
    const int tile = blockIdx.x * blockDim.x + threadIdx.x;
    const int out = blockIdx.y;
    const int tiles = batch * shape.tiles;
    if (tile >= tiles)
        return;
    float m[ELEMENTS];
#pragma unroll
    for (int f = 0; f < ELEMENTS; ++f)
        m[f] = products[(f * outputs + out) * tiles + tile];
    store_output(m, output, shape, outputs, out, tile);
}
