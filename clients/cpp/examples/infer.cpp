// The first program: 16 numbers to small_16, and its 16.
#include <mqinfer/mqinfer.h>

#include <iostream>

int main(int count, char** arguments) {
    try {
        mqinfer::Client client(count > 1 ? arguments[1] : "mqtt://127.0.0.1:1883");
        const std::vector<float> input(16, 1);
        const mqinfer::Result result = client.infer("small_16", {mqinfer::tensor("input", input, {1, 16})});
        const mqinfer::Tensor& output = result.output("output");
        for (std::size_t place = 0; place < output.elements(); ++place) std::cout << output.data<float>()[place] << ' ';
        std::cout << result.worker << '\n';
    } catch (const mqinfer::Error& error) {
        std::cerr << error.code() << ": " << error.what() << '\n';
        return 1;
    }
}
