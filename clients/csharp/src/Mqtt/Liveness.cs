using System;

namespace Mqinfer
{
    /// <summary>
    /// Whether the broker is still there: when to ping it, and when to give a connection up as dead. Bytes that arrive count, not
    /// packets, and so do bytes that leave this process: a large message on a thin link is no silence.
    /// </summary>
    internal sealed class Liveness
    {
        /// <summary>After so long without a packet sent, or without a byte received, the broker is pinged.</summary>
        private const double PingMs = 10000;

        /// <summary>The broker owes an answer, and so long nothing was received and nothing left: the connection is dead.</summary>
        private const double DeadMs = 5000;

        /// <summary>Ticks come every second. After a longer pause this process itself was halted, and the broker gets its time anew.</summary>
        private const double HaltedMs = 3000;
        private readonly object gate = new object();
        private readonly Func<double> clock;
        private double sent, life, ticked;
        private double pingMs = PingMs;

        /// <summary>Since when the broker owes an answer.</summary>
        private double? owed;

        /// <summary>Start with a connection, to which the broker owes an answer from the beginning.</summary>
        public Liveness(Func<double> clock)
        {
            this.clock = clock;
            sent = life = ticked = clock();
            owed = sent;
        }

        public enum Verdict
        {
            Alive,
            Ping,
            Dead,
        }

        /// <summary>Ping twice at least within the keep-alive that the broker states.</summary>
        public void Keep(double keepAliveMs)
        {
            lock (gate) pingMs = Math.Min(PingMs, keepAliveMs / 2);
        }

        /// <summary>Handle a packet that is sent.</summary>
        public void Sent(bool wantsAnswer)
        {
            lock (gate)
            {
                sent = clock();
                if (wantsAnswer && owed == null) owed = sent;
            }
        }

        /// <summary>Handle bytes that left.</summary>
        public void Left()
        {
            lock (gate) life = clock();
        }

        /// <summary>Handle bytes that were received.</summary>
        public void Received()
        {
            lock (gate) life = clock();
        }

        /// <summary>Handle an answer, and whether others are owed.</summary>
        public void Answered(bool othersAreOwed)
        {
            lock (gate) owed = othersAreOwed ? clock() : (double?)null;
        }

        /// <summary>Return what to do now, once a second.</summary>
        public Verdict Tick()
        {
            lock (gate)
            {
                double now = clock();
                if (now - ticked > HaltedMs) life = now;
                ticked = now;
                if (owed != null && now - Math.Max(owed.Value, life) > DeadMs) return Verdict.Dead;
                return now - (owed != null ? sent : Math.Min(sent, life)) >= pingMs ? Verdict.Ping : Verdict.Alive;
            }
        }
    }
}
