/// The C++ client of clients/cpp.
#include <mqinfer/mqinfer.h>

#include "driving.h"

namespace {

mqinfer::Datatype datatype_of(const std::string& name) {
    for (const auto each : {mqinfer::Datatype::FP32, mqinfer::Datatype::UINT8})
        if (to_string(each) == name) return each;
    throw std::runtime_error("no load of datatype " + name);
}

load::Ask connect(const load::Workload& workload, int port) {
    const auto client = std::make_shared<mqinfer::Client>("mqtt://127.0.0.1:" + std::to_string(port));
    const auto input = mqinfer::tensor(workload.input, datatype_of(workload.datatype), workload.array.data(), workload.shape);
    mqinfer::RequestOptions options;
    options.timeout = 60;
    options.outputs = {{workload.output, "", 0}};
    options.capture.source = "vehicle-0";  // as the others' requests
    return [client, input, options, model = workload.model](load::Done done) {
        client->submit(model, {input}, options, [done = std::move(done)](const mqinfer::Result& result) {
            if (!result.ok()) return done(nullptr, 0);
            const mqinfer::Tensor& output = result.outputs.at(0);
            done(output.bytes, output.size);
        });
    };
}

}  // namespace

int main(int count, char** arguments) { return load::serve(count, arguments, connect); }
