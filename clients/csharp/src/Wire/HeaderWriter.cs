using System;
using System.Collections.Generic;
using System.Linq;

namespace Mqinfer
{
    /// <summary>The header of a message as it is sent: fields in mqinfer's order, those at their default left out.</summary>
    internal static class HeaderWriter
    {
        private const int MostMessageBytes = 4000;

        public static Map Of(Request request)
        {
            var header = new Map { { "id", request.Id }, { "model_name", request.ModelName } };
            var parameters = new Map();
            AddText(header, "model_version", request.ModelVersion);
            AddFurther(parameters, request.Parameters, HeaderReader.IsOfRequest);
            AddNumber(parameters, "timeout", request.TimeoutUs);
            AddNumber(parameters, "priority", request.Priority, 0);
            AddNumber(parameters, "attempt", request.Attempt, 1);
            AddText(parameters, "response_topic", request.ResponseTopic);
            AddCapture(parameters, request.Capture);
            AddMap(header, "parameters", parameters);
            if (request.Outputs.Count > 0) header.Add("outputs", Outputs(request.Outputs));
            header.Add("inputs", Tensors(request.Inputs));
            return header;
        }

        public static Map Of(Reply reply)
        {
            var header = new Map { { "id", reply.Id }, { "model_name", reply.ModelName } };
            var parameters = new Map();
            AddText(header, "model_version", reply.ModelVersion);
            if (reply.Outcome != Outcome.Ok) header.Add("outcome", Word(reply.Outcome));
            AddText(header, "model_hash", reply.ModelHash);
            AddText(header, "worker", reply.Worker);
            if (reply.Stage != "worker") header.Add("stage", reply.Stage);
            AddMap(header, "timings", Timings(reply.Timings));
            AddMap(header, "load", Load(reply.Load));
            if (reply.Error != null)
                header.Add("error", new Map { { "code", reply.Error.Code }, { "message", Shortened(reply.Error.Message) } });
            AddFurther(parameters, reply.Parameters, HeaderReader.IsOfReply);
            AddNumber(parameters, "attempt", reply.Attempt, 1);
            AddCapture(parameters, reply.Capture);
            AddMap(header, "parameters", parameters);
            header.Add("outputs", Tensors(reply.Outputs));
            return header;
        }

        /// <summary>Return an outcome as it stands on the wire.</summary>
        public static string Word(Outcome outcome) => outcome.ToString().ToLowerInvariant();

        private static void AddText(Map map, string key, string text)
        {
            if (!string.IsNullOrEmpty(text)) map.Add(key, text);
        }

        private static void AddNumber(Map map, string key, long? number, long? usual = null)
        {
            if (number != usual && number != null) map.Add(key, number.Value);
        }

        private static void AddMap(Map map, string key, Map below)
        {
            if (below.Count > 0) map.Add(key, below);
        }

        private static void AddFurther(Map map, Parameters parameters, Func<string, bool> isField)
        {
            foreach (var entry in parameters)
            {
                if (isField(entry.Key))
                    throw new BadEnvelopeException("parameter " + Text.Shown(entry.Key) + " is a field; set the field instead");
                map.Add(entry.Key, entry.Value);
            }
        }

        private static void AddCapture(Map map, Capture capture)
        {
            AddText(map, "source", capture.Source);
            AddNumber(map, "sequence", capture.Sequence);
            AddNumber(map, "capture_time_ns", capture.TimeNs);
            AddText(map, "frame_id", capture.FrameId);
        }

        private static List<object> Tensors(IReadOnlyList<Tensor> tensors)
        {
            var found = new List<object>();
            foreach (Tensor tensor in tensors)
            {
                var parameters = new Map { { "binary_data_size", (long)tensor.Bytes.Count } };
                if (tensor.Encoding != "raw") parameters.Add("encoding", tensor.Encoding);
                AddFurther(parameters, tensor.Parameters, HeaderReader.IsOfTensor);
                found.Add(new Map
                {
                    { "name", tensor.Name },
                    { "datatype", tensor.Datatype.ToString() },
                    { "shape", tensor.Shape.Cast<object>().ToList() },
                    { "parameters", parameters },
                });
            }
            return found;
        }

        private static List<object> Outputs(IReadOnlyList<RequestedOutput> outputs)
        {
            var found = new List<object>();
            foreach (RequestedOutput output in outputs)
            {
                Map entry = new Map { { "name", output.Name } }, parameters = new Map();
                AddText(parameters, "encoding", output.Encoding);
                AddNumber(parameters, "classification", output.Classification, 0);
                AddMap(entry, "parameters", parameters);
                found.Add(entry);
            }
            return found;
        }

        private static Map Timings(Timings timings)
        {
            if (timings.Server == 0 && timings.ClientQueue == 0 && timings.Transmission == 0) return new Map();
            var found = new Map
            {
                { "server_queue", timings.ServerQueue },
                { "decode", timings.Decode },
                { "preprocess", timings.Preprocess },
                { "inference", timings.Inference },
                { "postprocess", timings.Postprocess },
                { "encode", timings.Encode },
            };
            AddNumber(found, "client_queue", timings.ClientQueue, 0);
            AddNumber(found, "transmission", timings.Transmission, 0);
            return found;
        }

        private static Map Load(Load load)
        {
            if (load.Depth == 0 && load.ServiceTimeUs == 0 && load.Window == 0) return new Map();
            var found = new Map { { "depth", load.Depth }, { "service_time_us", load.ServiceTimeUs } };
            AddNumber(found, "window", load.Window, 0);
            return found;
        }

        /// <summary>Return a message that every receiver takes, cut between two characters.</summary>
        private static string Shortened(string message)
        {
            byte[] bytes = Text.Utf8.GetBytes(message);
            if (bytes.Length <= MostMessageBytes) return message;
            int end = MostMessageBytes;
            while ((bytes[end] & 0xc0) == 0x80) end--;
            return Text.Utf8.GetString(bytes, 0, end);
        }
    }
}
