using System;
using System.Collections.Generic;
using System.Linq;

namespace Mqinfer
{
    /// <summary>What a worker states of itself, as far as a client without lanes needs it.</summary>
    internal sealed class WorkerState
    {
        private const int MostBytes = 64 << 10;
        private static readonly string[] Statuses = { "ready", "draining", "stopped", "lost", "crashed" };

        private WorkerState(string status, long boot, string[] models, string[] running)
        {
            Status = status;
            Boot = boot;
            Models = models;
            Running = running;
        }

        public string Status { get; }

        /// <summary>Start of the process, microseconds since 1970.</summary>
        public long Boot { get; }

        public IReadOnlyList<string> Models { get; }

        /// <summary>Of one that crashed: the requests that it worked on.</summary>
        public IReadOnlyList<string> Running { get; }

        public bool IsServing => Status == "ready" || Status == "draining";

        /// <summary>Return the state of the worker that a topic names; null where an empty payload removes it.</summary>
        /// <exception cref="MqinferException">It can't be read, or names another worker.</exception>
        public static WorkerState Read(string worker, ArraySegment<byte> payload)
        {
            if (payload.Count == 0) return null;
            Fields state = Json.Read(payload, "worker state", MostBytes);
            if (state.String("worker") != worker)
                throw new BadTopicException("the topic is that of worker " + worker + ", and the state names another");
            string status = state.String("status");
            if (!Statuses.Contains(status)) throw new BadEnvelopeException("worker state: there is no status " + Text.Shown(status));
            string[] models = state.Each("models").Select(model => Topics.Checked(NameKind.Model, model.String("name"))).ToArray();
            IEnumerable<string> running = (state.List("running") ?? new List<object>()).OfType<string>();
            return new WorkerState(status, state.Count("boot"), models, running.Where(id => Topics.IsName(NameKind.Request, id)).ToArray());
        }
    }
}
