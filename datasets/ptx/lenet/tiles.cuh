// Tiled matrix product of one thread block, for every kernel here that is a GEMM.
//
// A block of 128 threads computes a tile of 32 x 64 of C = A x B in steps of 16 along k. A step copies 16 x 32 of A and
// 16 x 64 of B to shared memory; each thread then updates 4 x 4 sums. Functions (`load_a(row, k)`, `load_b(k, column)`,
// `store(row, column, value)`) reach the operands, so that their addresses may be computed. They also check bounds:
// elements outside a matrix load as zero and are not stored.

#pragma once

enum { TILE_ROWS = 32 };
enum { TILE_COLUMNS = 64 };
enum { TILE_DEPTH = 16 };
enum { TILE_THREADS = 128 };
enum { PADDING = 4 };

// Copy one step of an operand to shared memory. With DEPTH_FIRST, neighbouring threads load neighbours along k.
template <int LINES, bool DEPTH_FIRST, class Load>
__device__ __forceinline__ void copy_tile(float (*tile)[LINES + PADDING], int first_line, int first_depth, Load load)
{
    constexpr int MINOR = DEPTH_FIRST ? TILE_DEPTH : LINES;
    const int minor = threadIdx.x % MINOR;
    const int major = threadIdx.x / MINOR;
#pragma unroll
    for (int step = 0; step < LINES * TILE_DEPTH / TILE_THREADS; ++step) {
        const int other = major + step * (TILE_THREADS / MINOR);
        const int depth = DEPTH_FIRST ? minor : other;
        const int line = DEPTH_FIRST ? other : minor;
        tile[depth][line] = load(first_line + line, first_depth + depth);
    }
}

// Multiply the rows and columns of this block's tile; the block index names the tile: x columns, y rows.
template <bool A_DEPTH_FIRST, bool B_DEPTH_FIRST, class LoadA, class LoadB, class Store>
__device__ __forceinline__ void multiply_tile(int depths, LoadA load_a, LoadB load_b, Store store)
{
    __shared__ __align__(16) float a_tile[TILE_DEPTH][TILE_ROWS + PADDING];
    __shared__ __align__(16) float b_tile[TILE_DEPTH][TILE_COLUMNS + PADDING];
    const int first_row = blockIdx.y * TILE_ROWS;
    const int first_column = blockIdx.x * TILE_COLUMNS;
    const int row = threadIdx.x / 16 * 4;
    const int column = threadIdx.x % 16 * 4;
    float sums[4][4] = {};
#pragma unroll 1
    for (int depth = 0; depth < depths; depth += TILE_DEPTH) {
        copy_tile<TILE_ROWS, A_DEPTH_FIRST>(a_tile, first_row, depth, load_a);
        copy_tile<TILE_COLUMNS, B_DEPTH_FIRST>(
            b_tile, first_column, depth, [&](int line, int k) { return load_b(k, line); });
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE_DEPTH; ++k) {
            const float4 a = *reinterpret_cast<const float4 *>(&a_tile[k][row]);
            const float4 b = *reinterpret_cast<const float4 *>(&b_tile[k][column]);
            const float left[4] = {a.x, a.y, a.z, a.w};
            const float right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    sums[i][j] += left[i] * right[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            store(first_row + row + i, first_column + column + j, sums[i][j]);
}
