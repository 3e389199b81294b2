using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;

namespace Mqinfer
{
    /// <summary>A reply to some client. <see cref="Tensor.Decode"/> expands the tensors that the program wants.</summary>
    public sealed class Watched
    {
        internal Watched(string client, string request, Reply reply)
        {
            Client = client;
            Request = request;
            Reply = reply;
        }

        /// <summary>Who asked, by the topic.</summary>
        public string Client { get; }

        /// <summary>The request's id, by the topic.</summary>
        public string Request { get; }

        /// <summary>The reply.</summary>
        public Reply Reply { get; }
    }

    /// <summary>What came of a watch so far.</summary>
    public sealed class WatchCounters
    {
        /// <summary>Messages.</summary>
        public long Received { get; internal set; }

        /// <summary>The oldest ones, since the buffer was full.</summary>
        public long Dropped { get; internal set; }

        /// <summary>They can't be read, were damaged, or are not what their topic says.</summary>
        public long Malformed { get; internal set; }

        /// <summary>The broker had kept them: they are of an earlier time.</summary>
        public long Retained { get; internal set; }
    }

    /// <summary>
    /// The results of others, as they come. A program that is slower gets the newest: with more than the buffer holds, the oldest
    /// is dropped.
    /// </summary>
    public sealed class Watch : IDisposable
    {
        /// <summary>Payloads that wait for the program, in bytes; the newest reply is kept however large it is.</summary>
        private const long MostBytes = 64L << 20;
        private readonly object gate = new object();
        private readonly SemaphoreSlim filled = new SemaphoreSlim(0);
        private readonly Queue<Watched> waiting = new Queue<Watched>();
        private readonly WatchCounters counters = new WatchCounters();
        private readonly int most;
        private readonly Limits limits;
        private readonly Topics topics;
        private readonly Action<Watch> onClose;
        private long bytes;
        private bool isClosed;

        internal Watch(int most, Limits limits, Topics topics, Action<Watch> onClose)
        {
            this.most = most > 0 ? most : throw new ConfigException("a buffer of " + most + " results is not possible; expected 1 or more");
            this.limits = limits;
            this.topics = topics;
            this.onClose = onClose;
        }

        /// <summary>Return the oldest reply that waits, or the next one; null once the watch or its client is closed.</summary>
        /// <exception cref="OperationCanceledException">The caller did not want to wait any longer.</exception>
        public async Task<Watched> NextAsync(CancellationToken cancel = default(CancellationToken))
        {
            while (true)
            {
                await filled.WaitAsync(cancel).ConfigureAwait(false);
                if (TryTake(out Watched found)) return found;
            }
        }

        /// <summary>As <see cref="NextAsync"/>; null also where none came in time.</summary>
        public Watched Next(TimeSpan timeout)
        {
            while (filled.Wait(timeout))
                if (TryTake(out Watched found))
                    return found;
            return null;
        }

        /// <summary>Return the counters.</summary>
        public WatchCounters Counters()
        {
            lock (gate)
                return new WatchCounters
                {
                    Received = counters.Received,
                    Dropped = counters.Dropped,
                    Malformed = counters.Malformed,
                    Retained = counters.Retained,
                };
        }

        /// <summary>End the watch; a second call does nothing.</summary>
        public void Dispose()
        {
            lock (gate)
            {
                if (isClosed) return;
                isClosed = true;
                waiting.Clear();
            }
            filled.Release();
            onClose(this);
        }

        internal void Receive(Incoming message)
        {
            Watched watched = message.IsRetained ? null : Read(message);
            lock (gate)
            {
                counters.Received++;
                if (message.IsRetained) counters.Retained++;
                else if (watched == null) counters.Malformed++;
                if (watched == null || isClosed) return;
                waiting.Enqueue(watched);
                bytes += SizeOf(watched);
                while (waiting.Count > most || bytes > MostBytes && waiting.Count > 1)
                {
                    bytes -= SizeOf(waiting.Dequeue());
                    counters.Dropped++;
                    filled.Wait(0); // where somebody has taken it already, he finds another reply or waits on
                }
            }
            filled.Release();
        }

        private static long SizeOf(Watched watched) => watched.Reply.Outputs.Sum(each => (long)each.Bytes.Count);

        /// <summary>Take what there is; once closed that is null, for everybody.</summary>
        private bool TryTake(out Watched found)
        {
            lock (gate)
            {
                found = waiting.Count > 0 ? waiting.Dequeue() : null;
                if (found != null) bytes -= SizeOf(found);
                if (isClosed) filled.Release();
                return found != null || isClosed;
            }
        }

        /// <summary>Return what a message holds; null where it can't be read.</summary>
        private Watched Read(Incoming message)
        {
            string[] address = topics.ResultOf(message.Topic);
            if (address == null || message.Checksum != null && message.Checksum != Envelope.Checksum(message.Payload)) return null;
            try
            {
                Reply reply = Envelope.DecodeReply(message.Payload, limits);
                return reply.ModelName == address[0] && reply.Id == address[2] ? new Watched(address[1], address[2], reply) : null;
            }
            catch (MqinferException)
            {
                return null;
            }
        }
    }
}
