// The first program: half of each number, plus 2.
#include <mqinfer/mqinfer.h>

#include <iostream>

int main(int count, char** arguments) {
    try {
        mqinfer::Client client(count > 1 ? arguments[1] : "mqtt://127.0.0.1:1883");
        const std::vector<float> x = {1, 2, 5};
        const mqinfer::Result result = client.infer("half_plus_two", {mqinfer::tensor("x", x)});
        const mqinfer::Tensor& y = result.output("y");
        for (std::size_t place = 0; place < y.elements(); ++place) std::cout << y.data<float>()[place] << ' ';
        std::cout << result.worker << '\n';
    } catch (const mqinfer::Error& error) {
        std::cerr << error.code() << ": " << error.what() << '\n';
        return 1;
    }
}
