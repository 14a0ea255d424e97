// Layers of LeNet other than convolutions and matrix products, their gradients, and the update of the weights.
//
// add_bias                data[image][channel][pixel] += bias[channel]
// bias_gradient           gradient[channel] = sum of data[image][channel][pixel] over images and pixels
// max_pool                output = largest of 2 x 2 inputs; argmax = its index in the plane, the first of equals
// max_pool_gradient       input gradient = output gradient at the argmax, else 0
// relu, relu_gradient     output = max(input, 0); input gradient = output gradient where the output is positive
// softmax_loss            probabilities = softmax(logits); loss = mean of -log(probability of the label)
// softmax_loss_gradient   logits' gradient = (probabilities - one-hot label) / batch
// sgd                     weights -= rate * gradient
//
// A thread computes one element, unless said otherwise.

extern "C" __global__ void __launch_bounds__(128)
add_bias(float *__restrict__ data, const float *__restrict__ bias, int count, int channels, int pixels)
{
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count)
        data[index] += bias[index / pixels % channels];
}

// Add the values of a block's threads in `sums`; the sum stands in its first element.
__device__ __forceinline__ void reduce_block(float *sums)
{
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
}

// A block of 64 threads computes one channel.
extern "C" __global__ void __launch_bounds__(64)
bias_gradient(const float *__restrict__ data, float *__restrict__ gradient, int batch, int channels, int pixels)
{
    __shared__ float sums[64];
    float sum = 0.0f;
    for (int index = threadIdx.x; index < batch * pixels; index += 64)
        sum += data[(index / pixels * channels + blockIdx.x) * pixels + index % pixels];
    sums[threadIdx.x] = sum;
    reduce_block(sums);
    if (threadIdx.x == 0)
        gradient[blockIdx.x] = sums[0];
}

// `count` is the number of outputs; `height` and `width` are those of the input, both even.
extern "C" __global__ void __launch_bounds__(128)
max_pool(const float *__restrict__ input, float *__restrict__ output, int *__restrict__ argmax, int count, int height,
         int width)
{
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count)
        return;
    const int out_width = width / 2;
    const int out_pixels = height / 2 * out_width;
    const int pixel = index % out_pixels;
    const float *plane = input + index / out_pixels * height * width;
    const int first = pixel / out_width * 2 * width + pixel % out_width * 2;
    float best = plane[first];
    int place = first;
#pragma unroll
    for (int step = 1; step < 4; ++step) {
        const int candidate = first + step / 2 * width + step % 2;
        const float value = plane[candidate];
        place = value > best ? candidate : place;
        best = value > best ? value : best;
    }
    output[index] = best;
    argmax[index] = place;
}

// `count` is the number of inputs; `height` and `width` are those of the input, both even.
extern "C" __global__ void __launch_bounds__(128)
max_pool_gradient(const float *__restrict__ output_gradient, const int *__restrict__ argmax,
                  float *__restrict__ input_gradient, int count, int height, int width)
{
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count)
        return;
    const int pixel = index % (height * width);
    const int plane = index / (height * width);
    const int window = (plane * (height / 2) + pixel / width / 2) * (width / 2) + pixel % width / 2;
    input_gradient[index] = argmax[window] == pixel ? output_gradient[window] : 0.0f;
}

extern "C" __global__ void __launch_bounds__(128)
relu(const float *__restrict__ input, float *__restrict__ output, int count)
{
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count)
        output[index] = fmaxf(input[index], 0.0f);
}

extern "C" __global__ void __launch_bounds__(128)
relu_gradient(const float *__restrict__ output_gradient, const float *__restrict__ output,
              float *__restrict__ input_gradient, int count)
{
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count)
        input_gradient[index] = output[index] > 0.0f ? output_gradient[index] : 0.0f;
}

// One block of 64 threads; a thread computes an image.
extern "C" __global__ void __launch_bounds__(64)
softmax_loss(const float *__restrict__ logits, const int *__restrict__ labels, float *__restrict__ probabilities,
             float *__restrict__ loss, int batch, int classes)
{
    __shared__ float sums[64];
    float total = 0.0f;
    for (int image = threadIdx.x; image < batch; image += 64) {
        const float *scores = logits + image * classes;
        float *shares = probabilities + image * classes;
        float largest = scores[0];
        for (int k = 1; k < classes; ++k)
            largest = fmaxf(largest, scores[k]);
        float sum = 0.0f;
        for (int k = 0; k < classes; ++k)
            sum += __expf(scores[k] - largest);
        for (int k = 0; k < classes; ++k)
            shares[k] = __expf(scores[k] - largest) / sum;
        total += __logf(sum) + largest - scores[labels[image]];
    }
    sums[threadIdx.x] = total;
    reduce_block(sums);
    if (threadIdx.x == 0)
        loss[0] = sums[0] / batch;
}

extern "C" __global__ void __launch_bounds__(128)
softmax_loss_gradient(const float *__restrict__ probabilities, const int *__restrict__ labels,
                      float *__restrict__ gradient, int batch, int classes)
{
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= batch * classes)
        return;
    const float target = index % classes == labels[index / classes] ? 1.0f : 0.0f;
    gradient[index] = (probabilities[index] - target) / batch;
}

extern "C" __global__ void __launch_bounds__(128)
sgd(float *__restrict__ weights, const float *__restrict__ gradient, float rate, int count)
{
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count)
        weights[index] -= rate * gradient[index];
}
