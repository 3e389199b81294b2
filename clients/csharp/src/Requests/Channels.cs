using System;
using System.Collections.Generic;
using System.Linq;

namespace Mqinfer
{
    /// <summary>
    /// The models' shared channels: what waits for each, which of them nobody serves, and how long replies usually take. What
    /// waits for one channel never holds up another. Times are readings of the owner's clock, in milliseconds.
    /// </summary>
    internal sealed class Channels
    {
        /// <summary>Least silence after which a request is sent again, and the same as a multiple of a reply's usual time.</summary>
        private const double SilenceMs = 3000, SilenceFactor = 3;

        /// <summary>The silence where nothing is known of the model.</summary>
        private const double SilenceUnknownMs = 10000;

        /// <summary>A channel without subscribers is tried again after this at the latest.</summary>
        private const double LongestPauseMs = 1000;

        /// <summary>Weight of the newest reading in the usual time of a reply.</summary>
        private const double Weight = 0.2;

        /// <summary>Models of which the usual time is kept; with one more all are forgotten.</summary>
        private const int MostModels = 1024;

        private readonly Dictionary<string, LinkedList<Entry>> queues = new Dictionary<string, LinkedList<Entry>>();

        /// <summary>Channels with requests, in the order of their turns.</summary>
        private readonly LinkedList<string> turns = new LinkedList<string>();
        private readonly Dictionary<string, Unserved> unserved = new Dictionary<string, Unserved>();
        private readonly Dictionary<string, double> usual = new Dictionary<string, double>();

        /// <summary>Queue a request behind the others of its channel, or before them.</summary>
        public void Add(Entry entry, bool isFirst = false)
        {
            if (!queues.TryGetValue(entry.Channel, out LinkedList<Entry> queue))
            {
                queues[entry.Channel] = queue = new LinkedList<Entry>();
                turns.AddLast(entry.Channel);
            }
            entry.Node = isFirst ? queue.AddFirst(entry) : queue.AddLast(entry);
        }

        /// <summary>Remove a request that waits.</summary>
        public void Remove(Entry entry)
        {
            LinkedList<Entry> queue = queues[entry.Channel];
            queue.Remove(entry.Node);
            entry.Node = null;
            if (queue.Count > 0) return;
            queues.Remove(entry.Channel);
            turns.Remove(entry.Channel);
        }

        /// <summary>Remove and return the next request to send; null where every channel is empty or closed.</summary>
        public Entry Next(double now)
        {
            for (LinkedListNode<string> turn = turns.First; turn != null; turn = turn.Next)
            {
                if (unserved.TryGetValue(turn.Value, out Unserved closed))
                {
                    if (now < closed.Until) continue;
                    closed.Until = now + closed.Pause; // one at a time, until one is answered
                }
                Entry entry = queues[turn.Value].First.Value;
                turns.Remove(turn);
                turns.AddLast(turn);
                Remove(entry);
                return entry;
            }
            return null;
        }

        /// <summary>Return when a channel with requests opens again; infinite where none is closed.</summary>
        public double OpensAt() =>
            unserved.Where(each => queues.ContainsKey(each.Key)).Select(each => each.Value.Until).DefaultIfEmpty(double.PositiveInfinity).Min();

        /// <summary>
        /// Close a channel that nobody subscribes to; return since when that is so. Each further pause is twice as long.
        /// </summary>
        public double Close(string channel, double now, double pause)
        {
            if (!unserved.TryGetValue(channel, out Unserved closed)) unserved[channel] = closed = new Unserved { Since = now, Pause = pause };
            closed.Until = now + closed.Pause;
            closed.Pause = Math.Min(2 * closed.Pause, LongestPauseMs);
            return closed.Since;
        }

        /// <summary>Open a channel at a time, if it would not open sooner.</summary>
        public void OpenAt(string channel, double at)
        {
            if (unserved.TryGetValue(channel, out Unserved closed)) closed.Until = Math.Min(closed.Until, at);
        }

        /// <summary>Open a channel: somebody has answered.</summary>
        public void Open(string channel) => unserved.Remove(channel);

        /// <summary>Open all channels: nothing is known of them on a new connection.</summary>
        public void OpenAll() => unserved.Clear();

        /// <summary>Forget the closed channels that nothing waits for.</summary>
        public void Forget(double now)
        {
            foreach (string channel in unserved.Keys.ToList())
                if (!queues.ContainsKey(channel) && now > unserved[channel].Until + LongestPauseMs)
                    unserved.Remove(channel);
        }

        /// <summary>Record how long a model took to reply.</summary>
        public void Measure(string model, double ms)
        {
            if (usual.Count >= MostModels && !usual.ContainsKey(model)) usual.Clear();
            usual[model] = usual.TryGetValue(model, out double before) ? before + Weight * (ms - before) : ms;
        }

        /// <summary>Return after how long a request counts as unanswered.</summary>
        public double Silence(string model) =>
            usual.TryGetValue(model, out double ms) ? Math.Max(SilenceMs, SilenceFactor * ms) : SilenceUnknownMs;

        private sealed class Unserved
        {
            public double Since { get; set; }

            public double Until { get; set; }

            public double Pause { get; set; }
        }
    }
}
