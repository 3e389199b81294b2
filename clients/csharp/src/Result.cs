using System;
using System.Collections.Generic;
using System.Linq;

namespace Mqinfer
{
    /// <summary>The result of one request.</summary>
    public sealed class Result
    {
        private static readonly HashSet<string> Pictures = new HashSet<string> { "jpeg", "png" };

        private Result(Reply reply, IReadOnlyList<Tensor> outputs, Timings timings, Capture capture, int attempts)
        {
            Id = reply.Id;
            ModelName = reply.ModelName;
            ModelVersion = reply.ModelVersion;
            ModelHash = reply.ModelHash;
            Worker = reply.Worker;
            Stage = reply.Stage;
            Parameters = reply.Parameters;
            Outputs = outputs;
            Timings = timings;
            Capture = capture;
            Attempts = attempts;
        }

        /// <summary>The request's id.</summary>
        public string Id { get; }

        /// <summary>The model that was asked.</summary>
        public string ModelName { get; }

        /// <summary>The version that answered.</summary>
        public string ModelVersion { get; }

        /// <summary>Content hash of the model's files.</summary>
        public string ModelHash { get; }

        /// <summary>Name of the worker.</summary>
        public string Worker { get; }

        /// <summary>Which part of a cascade answered.</summary>
        public string Stage { get; }

        /// <summary>Decoded; <c>jpeg</c> and <c>png</c> stay as they came.</summary>
        public IReadOnlyList<Tensor> Outputs { get; }

        /// <summary>What the parts of the request took.</summary>
        public Timings Timings { get; }

        /// <summary>The request's.</summary>
        public Capture Capture { get; }

        /// <summary>How often the request was sent.</summary>
        public int Attempts { get; }

        /// <summary>Further parameters of the reply.</summary>
        public Parameters Parameters { get; }

        /// <summary>Return an output.</summary>
        /// <exception cref="BadTensorException">There is none of this name.</exception>
        public Tensor this[string name] => Outputs.FirstOrDefault(each => each.Name == name) ??
            throw new BadTensorException(
                "the result has no output " + Text.Shown(name) + "; it has " + string.Join(", ", Outputs.Select(each => each.Name)));

        /// <summary>Return the result of a reply whose outcome is <c>ok</c>.</summary>
        /// <exception cref="BadEncodingException">A tensor can't be decoded.</exception>
        internal static Result Of(Reply reply, Entry entry, Capture capture, double now, Limits limits)
        {
            try
            {
                CheckTogether(reply.Outputs, limits);
                var outputs = reply.Outputs.Select(each => Pictures.Contains(each.Encoding) ? each : each.Decode(limits)).ToArray();
                return new Result(reply, outputs, WithClientPart(reply.Timings, entry, now), capture, entry.Attempts);
            }
            catch (MqinferException error)
            {
                throw new BadEncodingException("the reply can't be decoded: " + error.Message);
            }
        }

        private static void CheckTogether(IReadOnlyList<Tensor> outputs, Limits limits)
        {
            double size = outputs.Sum(each => each.Datatype == Datatype.BYTES
                ? each.Parameters["raw_size"] as long? ?? each.Bytes.Count
                : (double)each.Elements * Datatypes.ItemBytes(each.Datatype));
            if (size > limits.TensorBytes)
                throw new LimitExceededException("the outputs take " + size + " bytes; at most " + limits.TensorBytes + " are accepted");
        }

        private static Timings WithClientPart(Timings timings, Entry entry, double now)
        {
            timings.ClientQueue = (long)((entry.Sent - entry.Submitted) * 1e6);
            timings.Transmission = Math.Max(0, (long)((now - entry.Sent) * 1e6) - timings.Server);
            return timings;
        }
    }

    /// <summary>What became of all requests, and what came beside their replies.</summary>
    public sealed class Counters
    {
        /// <summary>Requests so far: those pending and all outcomes together.</summary>
        public long Submitted { get; internal set; }

        /// <summary>Without an outcome.</summary>
        public long Pending { get; internal set; }

        /// <summary>Of those: published.</summary>
        public long InFlight { get; internal set; }

        /// <summary>With a result.</summary>
        public long Ok { get; internal set; }

        /// <summary>Failed.</summary>
        public long Error { get; internal set; }

        /// <summary>Their deadline passed.</summary>
        public long Expired { get; internal set; }

        /// <summary>Superseded.</summary>
        public long Superseded { get; internal set; }

        /// <summary>No room for them.</summary>
        public long Rejected { get; internal set; }

        /// <summary>Cancelled, or ended with the client.</summary>
        public long Cancelled { get; internal set; }

        /// <summary>Publications beyond each request's first.</summary>
        public long Retries { get; internal set; }

        /// <summary>Retries that the budget delayed.</summary>
        public long Withheld { get; internal set; }

        /// <summary>Replies to requests that had an outcome, duplicates among them.</summary>
        public long Late { get; internal set; }

        /// <summary>Replies on another topic, of another model or version, or to a later attempt than was sent.</summary>
        public long Mismatched { get; internal set; }

        /// <summary>Replies that can't be read, or were damaged on the way.</summary>
        public long Malformed { get; internal set; }

        /// <summary>Replies that the broker had kept: they are of an earlier time.</summary>
        public long Retained { get; internal set; }

        /// <summary>Workers' states that can't be read.</summary>
        public long BadStates { get; internal set; }
    }
}
