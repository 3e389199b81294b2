using System.Collections.Generic;
using System.Linq;

namespace Mqinfer
{
    /// <summary>Which workers serve which models, by their states: so that the loss of one is noticed at once. Bounded.</summary>
    internal sealed class Workers
    {
        /// <summary>Workers that are followed; the loss of others shows by silence.</summary>
        private const int MostWorkers = 1024;
        private const int MostListed = 20;
        private static readonly string[] Nothing = new string[0];
        private readonly Dictionary<string, WorkerState> known = new Dictionary<string, WorkerState>();

        /// <summary>Take a worker's state; null where an empty payload removed it.</summary>
        /// <param name="worker">The worker.</param>
        /// <param name="state">Its state.</param>
        /// <param name="crashedOn">Requests that a process worked on when it crashed.</param>
        /// <returns>Models of a worker that is gone, or another process now: what it had is sent again.</returns>
        public IReadOnlyList<string> Observe(string worker, WorkerState state, out IReadOnlyList<string> crashedOn)
        {
            known.TryGetValue(worker, out WorkerState before);
            bool isServing = state != null && state.IsServing;
            bool isOther = state != null && before != null && state.Boot != before.Boot;
            crashedOn = state != null && state.Status == "crashed" ? state.Running : Nothing;
            // The end of an earlier process of this name says nothing about the one that serves now.
            if (!isServing && isOther) return Nothing;
            if (isServing && (before != null || known.Count < MostWorkers)) known[worker] = state;
            else known.Remove(worker);
            // One that stopped has answered all that it had accepted.
            bool isLost = before != null && state?.Status != "stopped" && (!isServing || isOther);
            return isLost ? before.Models : Nothing;
        }

        /// <summary>Return which models there are, for a message; empty where none is known.</summary>
        public string Served()
        {
            string[] names = known.Values.SelectMany(each => each.Models).Distinct().OrderBy(each => each).ToArray();
            string more = names.Length > MostListed ? " and " + (names.Length - MostListed) + " more" : "";
            return names.Length == 0 ? "" : " (models that workers serve here: " + string.Join(", ", names.Take(MostListed)) + more + ")";
        }
    }
}
