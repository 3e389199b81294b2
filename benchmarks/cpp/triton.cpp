/// Triton's own C++ client, over gRPC.
#include "driving.h"
#include "grpc_client.h"

namespace {

namespace tc = triton::client;

void expect(const tc::Error& error) {
    if (!error.IsOk()) throw std::runtime_error(error.Message());
}

struct Connection {
    std::mutex mutex;  // its client is not to be called from two threads
    std::unique_ptr<tc::InferenceServerGrpcClient> client;
    std::unique_ptr<tc::InferInput> input;
    std::unique_ptr<tc::InferRequestedOutput> output;
};

void answer(tc::InferResult* received, const std::string& name, const load::Done& done) {
    const std::unique_ptr<tc::InferResult> result(received);
    const std::uint8_t* bytes = nullptr;
    std::size_t size = 0;
    if (result->RequestStatus().IsOk() && result->RawData(name, &bytes, &size).IsOk()) return done(bytes, size);
    done(nullptr, 0);
}

load::Ask connect(const load::Workload& workload, int port) {
    const auto own = std::make_shared<Connection>();
    expect(tc::InferenceServerGrpcClient::Create(&own->client, "127.0.0.1:" + std::to_string(port)));
    tc::InferInput* input = nullptr;
    tc::InferRequestedOutput* output = nullptr;
    expect(tc::InferInput::Create(&input, workload.input, workload.shape, workload.datatype));
    own->input.reset(input);
    expect(tc::InferRequestedOutput::Create(&output, workload.output));
    own->output.reset(output);
    tc::InferOptions options(workload.model);
    options.client_timeout_ = 60'000'000;
    return [own, options, &workload](load::Done done) {
        const std::lock_guard lock(own->mutex);
        expect(own->input->Reset());
        expect(own->input->AppendRaw(workload.array));
        expect(own->client->AsyncInfer(
            [done = std::move(done), name = workload.output](tc::InferResult* result) { answer(result, name, done); }, options, {own->input.get()},
            {own->output.get()}));
    };
}

}  // namespace

int main(int count, char** arguments) { return load::serve(count, arguments, connect); }
