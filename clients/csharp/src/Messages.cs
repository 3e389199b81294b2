using System.Collections.Generic;

namespace Mqinfer
{
    /// <summary>How a request ended.</summary>
    public enum Outcome
    {
        /// <summary>With a result.</summary>
        Ok,

        /// <summary>It failed; the code of its error says why.</summary>
        Error,

        /// <summary>The deadline passed first.</summary>
        Expired,

        /// <summary>A newer frame of the stream took its place.</summary>
        Superseded,

        /// <summary>The worker is busy or draining, or received a damaged request.</summary>
        Rejected,

        /// <summary>The caller cancelled it.</summary>
        Cancelled,
    }

    /// <summary>Where a frame came from.</summary>
    public sealed class Capture
    {
        /// <summary>Stream, camera or ROS topic.</summary>
        public string Source { get; set; } = "";

        /// <summary>Number of the frame within its stream.</summary>
        public long? Sequence { get; set; }

        /// <summary>Capture stamp in nanoseconds since the epoch.</summary>
        public long? TimeNs { get; set; }

        /// <summary>Coordinate frame of the sensor.</summary>
        public string FrameId { get; set; } = "";
    }

    /// <summary>An output that a request asks for.</summary>
    public sealed class RequestedOutput
    {
        /// <summary>Ask for an output by its name.</summary>
        public RequestedOutput(string name) => Name = name;

        /// <summary>Name of the model's output.</summary>
        public string Name { get; }

        /// <summary>The codec to send it in, optionally with a level (<c>lz4:9</c>); empty for the worker's choice.</summary>
        public string Encoding { get; set; } = "";

        /// <summary>Above 0: so many largest elements, as text.</summary>
        public long Classification { get; set; }
    }

    /// <summary>A request as it travels.</summary>
    public sealed class Request
    {
        /// <summary>Identifies the request; every retry repeats it.</summary>
        public string Id { get; set; } = "";

        /// <summary>The model, as in the topic.</summary>
        public string ModelName { get; set; } = "";

        /// <summary>Empty for the default one.</summary>
        public string ModelVersion { get; set; } = "";

        /// <summary>The tensors.</summary>
        public IReadOnlyList<Tensor> Inputs { get; set; } = new Tensor[0];

        /// <summary>Empty for all, in the worker's encoding.</summary>
        public IReadOnlyList<RequestedOutput> Outputs { get; set; } = new RequestedOutput[0];

        /// <summary>Microseconds left until the deadline when it was sent; null for no deadline.</summary>
        public long? TimeoutUs { get; set; }

        /// <summary>1 is the highest, 0 the model's default.</summary>
        public long Priority { get; set; }

        /// <summary>1 for the first sending.</summary>
        public long Attempt { get; set; } = 1;

        /// <summary>Where the reply goes, if the payload has to state it.</summary>
        public string ResponseTopic { get; set; } = "";

        /// <summary>Where a frame came from.</summary>
        public Capture Capture { get; set; } = new Capture();

        /// <summary>Further parameters.</summary>
        public Parameters Parameters { get; set; } = new Parameters();

        /// <summary>Return the same request for one of its sendings.</summary>
        internal Request Attempted(long timeoutUs, int attempt)
        {
            var found = (Request)MemberwiseClone();
            found.TimeoutUs = timeoutUs;
            found.Attempt = attempt;
            return found;
        }
    }

    /// <summary>Why a request has no result: a code of docs/reference/protocol.md, section 7, and text for people.</summary>
    public sealed class Failure
    {
        /// <summary>State a failure.</summary>
        public Failure(string code, string message)
        {
            Code = code;
            Message = message;
        }

        /// <summary>The code.</summary>
        public string Code { get; }

        /// <summary>The peer's words: text of a stranger.</summary>
        public string Message { get; }
    }

    /// <summary>Nanoseconds that the parts of a request took.</summary>
    public sealed class Timings
    {
        /// <summary>From submission to the last sending.</summary>
        public long ClientQueue { get; set; }

        /// <summary>From that to the reply, less the worker's parts.</summary>
        public long Transmission { get; set; }

        /// <summary>Waiting at the worker.</summary>
        public long ServerQueue { get; set; }

        /// <summary>Decoding of the inputs.</summary>
        public long Decode { get; set; }

        /// <summary>Before the model.</summary>
        public long Preprocess { get; set; }

        /// <summary>The model.</summary>
        public long Inference { get; set; }

        /// <summary>After the model.</summary>
        public long Postprocess { get; set; }

        /// <summary>Encoding of the outputs.</summary>
        public long Encode { get; set; }

        internal long Server => ServerQueue + Decode + Preprocess + Inference + Postprocess + Encode;
    }

    /// <summary>How busy a worker is.</summary>
    public sealed class Load
    {
        /// <summary>Requests that it has accepted and not answered.</summary>
        public long Depth { get; set; }

        /// <summary>Its smoothed time of one request, in microseconds.</summary>
        public long ServiceTimeUs { get; set; }

        /// <summary>How many requests this client may have in flight there.</summary>
        public long Window { get; set; }
    }

    /// <summary>A reply as it travels.</summary>
    public sealed class Reply
    {
        /// <summary>The request's.</summary>
        public string Id { get; set; } = "";

        /// <summary>The request's.</summary>
        public string ModelName { get; set; } = "";

        /// <summary>The version that answered.</summary>
        public string ModelVersion { get; set; } = "";

        /// <summary>How the request ended.</summary>
        public Outcome Outcome { get; set; }

        /// <summary>Null where the outcome is <c>ok</c>.</summary>
        public Failure Error { get; set; }

        /// <summary>As they travelled: <see cref="Tensor.Decode"/> expands those that are wanted.</summary>
        public IReadOnlyList<Tensor> Outputs { get; set; } = new Tensor[0];

        /// <summary>Content hash of the model's files.</summary>
        public string ModelHash { get; set; } = "";

        /// <summary>Name of the worker.</summary>
        public string Worker { get; set; } = "";

        /// <summary>Which part of a cascade answered: <c>worker</c>, <c>edge</c> or <c>edge-reuse</c>.</summary>
        public string Stage { get; set; } = "worker";

        /// <summary>What its parts took.</summary>
        public Timings Timings { get; set; } = new Timings();

        /// <summary>How busy the worker is.</summary>
        public Load Load { get; set; } = new Load();

        /// <summary>The request's.</summary>
        public long Attempt { get; set; } = 1;

        /// <summary>The request's.</summary>
        public Capture Capture { get; set; } = new Capture();

        /// <summary>Further parameters.</summary>
        public Parameters Parameters { get; set; } = new Parameters();
    }
}
