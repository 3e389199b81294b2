using System.Collections.Generic;

namespace Mqinfer
{
    /// <summary>Queued; in flight: published and unanswered; or it backs off until it is queued again.</summary>
    internal enum Place
    {
        Queued,
        InFlight,
        BackingOff,
        Ended,
    }

    /// <summary>One request until its outcome. Times are readings of the table's clock, in milliseconds.</summary>
    internal sealed class Entry
    {
        public Entry(string id, string model, string version, string responseTopic, double now, double timeoutMs)
        {
            Id = id;
            Model = model;
            Version = version;
            ResponseTopic = responseTopic;
            Submitted = Sent = now;
            Deadline = now + timeoutMs;
        }

        public string Id { get; }

        public string Model { get; }

        /// <summary>The version that was asked for; empty for none.</summary>
        public string Version { get; }

        /// <summary>Where its reply has to come.</summary>
        public string ResponseTopic { get; }

        /// <summary>Requests of one channel wait for the same workers.</summary>
        public string Channel => Model + "/" + Version;

        public double Submitted { get; }

        public double Deadline { get; }

        public Place Place { get; set; }

        /// <summary>When it was published last.</summary>
        public double Sent { get; set; }

        /// <summary>How often it was published.</summary>
        public int Attempts { get; set; }

        /// <summary>When its last publication counts as unanswered.</summary>
        public double RetryAt { get; set; } = double.PositiveInfinity;

        /// <summary>When it is queued again, while it backs off.</summary>
        public double ResumeAt { get; set; } = double.PositiveInfinity;

        /// <summary>When it was turned away first on this connection.</summary>
        public double? RefusedSince { get; set; }

        /// <summary>How often a worker of its model was lost while it was in flight.</summary>
        public int Losses { get; set; }

        /// <summary>How many workers crashed while they worked on it.</summary>
        public int Crashes { get; set; }

        /// <summary>Its place in the queue of its channel, while it is queued.</summary>
        public LinkedListNode<Entry> Node { get; set; }
    }
}
