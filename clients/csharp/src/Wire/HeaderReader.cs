using System;
using System.Collections.Generic;
using System.Linq;

namespace Mqinfer
{
    /// <summary>The header of a message, as a stranger sent it: its fields, checked one by one.</summary>
    internal static class HeaderReader
    {
        private static readonly string[] CaptureFields = { "source", "sequence", "capture_time_ns", "frame_id" };
        private static readonly HashSet<string> OfRequest =
            new HashSet<string>(CaptureFields) { "timeout", "priority", "attempt", "response_topic" };
        private static readonly HashSet<string> OfReply =
            new HashSet<string>(CaptureFields)
            { "attempt", "outcome", "model_hash", "worker", "stage", "timings", "load", "error_code" };
        private static readonly HashSet<string> OfTensor = new HashSet<string> { "encoding", "binary_data_size" };

        /// <summary>Return whether a parameter of a request is a field of <see cref="Mqinfer.Request"/>.</summary>
        public static bool IsOfRequest(string key) => OfRequest.Contains(key);

        public static bool IsOfReply(string key) => OfReply.Contains(key);

        public static bool IsOfTensor(string key) => OfTensor.Contains(key);

        /// <summary>Read a request.</summary>
        /// <param name="header">What the bytes of the header hold.</param>
        /// <param name="limits">What is accepted.</param>
        /// <param name="place">Returns the bytes of the tensors, by their sizes.</param>
        public static Request Request(object header, Limits limits, Func<IReadOnlyList<long>, List<ArraySegment<byte>>> place)
        {
            var fields = new Fields(header, "request");
            var found = new Request
            {
                Id = fields.String("id"),
                ModelName = fields.String("model_name"),
                ModelVersion = fields.Has("model_version") ? fields.String("model_version") : "",
                Outputs = fields.Each("outputs").Select(Output).ToArray(),
            };
            Fields parameters = fields.Below("parameters");
            if (parameters != null)
            {
                if (parameters.Has("timeout")) found.TimeoutUs = parameters.Count("timeout");
                found.Priority = parameters.Count("priority", 0);
                found.Attempt = parameters.Count("attempt", 1, 1);
                found.ResponseTopic = parameters.String("response_topic", "");
                found.Capture = Capture(parameters);
                found.Parameters = parameters.Scalars(IsOfRequest);
            }
            found.Inputs = Tensors(fields, "inputs", limits, place);
            return found;
        }

        /// <summary>Read a reply; as for a request.</summary>
        public static Reply Reply(object header, Limits limits, Func<IReadOnlyList<long>, List<ArraySegment<byte>>> place)
        {
            var fields = new Fields(header, "reply");
            string stage = fields.String("stage", "worker");
            var found = new Reply
            {
                Id = fields.String("id"),
                ModelName = fields.String("model_name", ""),
                ModelVersion = fields.String("model_version", ""),
                Outcome = OutcomeOf(fields.String("outcome", "ok")),
                ModelHash = fields.String("model_hash", ""),
                Worker = fields.String("worker", ""),
                Stage = stage == "edge" || stage == "edge-reuse" ? stage : "worker",
            };
            Fields error = fields.Below("error"), timings = fields.Below("timings"), load = fields.Below("load");
            if (error != null) found.Error = new Failure(error.String("code"), error.String("message", ""));
            if (timings != null) found.Timings = Timings(timings);
            if (load != null) found.Load = Load(load);
            Fields parameters = fields.Below("parameters");
            if (parameters != null)
            {
                found.Attempt = parameters.Count("attempt", 1, 1);
                found.Capture = Capture(parameters);
                found.Parameters = parameters.Scalars(IsOfReply);
            }
            found.Outputs = Tensors(fields, "outputs", limits, place);
            return found;
        }

        private static Outcome OutcomeOf(string text)
        {
            foreach (Outcome each in Enum.GetValues(typeof(Outcome)))
                if (HeaderWriter.Word(each) == text)
                    return each;
            throw new BadEnvelopeException("reply: there is no outcome " + Text.Shown(text));
        }

        private static RequestedOutput Output(Fields entry)
        {
            Fields parameters = entry.Below("parameters");
            return new RequestedOutput(entry.String("name"))
            {
                Encoding = parameters?.String("encoding", "") ?? "",
                Classification = parameters?.Count("classification", 0) ?? 0,
            };
        }

        private static Capture Capture(Fields parameters) => new Capture
        {
            Source = parameters.String("source", ""),
            Sequence = parameters.Has("sequence") ? parameters.Count("sequence") : (long?)null,
            TimeNs = parameters.Has("capture_time_ns") ? parameters.Count("capture_time_ns", null, long.MinValue) : (long?)null,
            FrameId = parameters.String("frame_id", ""),
        };

        private static Timings Timings(Fields fields) => new Timings
        {
            ClientQueue = fields.Count("client_queue", 0),
            Transmission = fields.Count("transmission", 0),
            ServerQueue = fields.Count("server_queue", 0),
            Decode = fields.Count("decode", 0),
            Preprocess = fields.Count("preprocess", 0),
            Inference = fields.Count("inference", 0),
            Postprocess = fields.Count("postprocess", 0),
            Encode = fields.Count("encode", 0),
        };

        private static Load Load(Fields fields) => new Load
        {
            Depth = fields.Count("depth", 0),
            ServiceTimeUs = fields.Count("service_time_us", 0),
            Window = fields.Count("window", 0),
        };

        private static Tensor[] Tensors(
            Fields header, string key, Limits limits, Func<IReadOnlyList<long>, List<ArraySegment<byte>>> place)
        {
            List<Fields> entries = header.Each(key);
            if (entries.Count > limits.Tensors)
                throw new LimitExceededException(entries.Count + " " + key + "; at most " + limits.Tensors + " are accepted");
            var sizes = new List<long>();
            Tensor[] described = entries.Select(entry => Described(entry, limits, sizes)).ToArray();
            if (described.Select(each => each.Name).Distinct().Count() != described.Length)
                throw new BadTensorException("two " + key + " have the same name; send each once");
            return described.Zip(place(sizes), (each, bytes) => each.With(bytes)).ToArray();
        }

        /// <summary>Return a tensor without its bytes, whose number is appended.</summary>
        private static Tensor Described(Fields entry, Limits limits, List<long> sizes)
        {
            string name = entry.String("name");
            if (!(entry.Any("datatype") is string word) || !Datatypes.TryParse(word, out Datatype datatype))
                throw new BadTensorException("tensor " + Text.Shown(name) + ": its datatype is missing or unknown");
            if (!(entry.Any("shape") is List<object> sides))
                throw new BadTensorException("tensor " + Text.Shown(name) + ": 'shape' must be an array");
            long[] shape = sides.Select(side => Side(name, side)).ToArray();
            Datatypes.CheckShape(name, datatype, shape, limits);
            Fields parameters = entry.Below("parameters");
            if (parameters == null)
                throw new BadEnvelopeException("tensor " + Text.Shown(name) + ": 'binary_data_size' is missing");
            sizes.Add(parameters.Count("binary_data_size"));
            return new Tensor(name, datatype, shape, parameters.String("encoding", "raw"), parameters.Scalars(IsOfTensor));
        }

        private static long Side(string name, object side)
        {
            if (side is long length && length >= 0) return length;
            throw new BadTensorException(
                "tensor " + Text.Shown(name) + ": every entry of a shape must be an integer from 0 to 2**63 - 1");
        }
    }
}
