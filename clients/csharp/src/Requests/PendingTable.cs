using System;
using System.Collections.Generic;
using System.Linq;

namespace Mqinfer
{
    /// <summary>
    /// The requests of a client without an outcome: a pure state machine without timers, tasks or a link.
    ///
    /// Its owner reports each event with the clock's reading in milliseconds, and then calls <see cref="Take"/>: that returns the
    /// requests to publish now, and those that ended without a reply. A request leaves the table exactly once, and whoever takes
    /// it out owns its one outcome.
    ///
    /// A request is sent again if nobody subscribed (PUBACK 0x10), a worker was busy or lost, the connection was lost, it or its
    /// reply was damaged, or no reply came in time. The last two may be a tenth of all requests (and 16 at once), so that a slow
    /// system is not flooded; the others are bounded by the window and by patience.
    /// </summary>
    internal sealed class PendingTable
    {
        private const int NoSubscribers = 0x10, NotAuthorized = 0x87;

        /// <summary>A pause before a request that the retry budget held back is tried again.</summary>
        private const double NoBudgetMs = 100;

        /// <summary>A request that was turned away is sent again after this at the latest.</summary>
        private const double LongestPauseMs = 1000;

        /// <summary>A request in flight at a second loss waits so long: in this time the reports of crashes come.</summary>
        private const double SetAsideMs = 2000;

        /// <summary>Workers that may crash on a request; it is sent to no further one.</summary>
        private const int MostCrashes = 2;

        private readonly ClientOptions options;
        private readonly Func<string> served;
        private readonly Dictionary<string, Entry> entries = new Dictionary<string, Entry>();
        private readonly Channels channels = new Channels();
        private readonly RetryBudget budget = new RetryBudget();
        private readonly long[] outcomes = new long[Enum.GetValues(typeof(Outcome)).Length];
        private List<Ended> ended = new List<Ended>();
        private int inFlight;
        private long submitted, retries, withheld, late, mismatched;
        private bool wasLost;
        private double settledBy = double.NegativeInfinity;

        /// <param name="options">How requests are sent.</param>
        /// <param name="served">Returns which models there are, for the message where no worker serves one.</param>
        public PendingTable(ClientOptions options, Func<string> served)
        {
            this.options = options;
            this.served = served;
        }

        /// <summary>When <see cref="Take"/> has something to do, though no event came; infinite for never.</summary>
        public double WakeAt { get; private set; } = double.PositiveInfinity;

        public Counters Counters() => new Counters
        {
            Submitted = submitted,
            Pending = entries.Count,
            InFlight = inFlight,
            Ok = outcomes[(int)Outcome.Ok],
            Error = outcomes[(int)Outcome.Error],
            Expired = outcomes[(int)Outcome.Expired],
            Superseded = outcomes[(int)Outcome.Superseded],
            Rejected = outcomes[(int)Outcome.Rejected],
            Cancelled = outcomes[(int)Outcome.Cancelled],
            Retries = retries,
            Withheld = withheld,
            Late = late,
            Mismatched = mismatched,
        };

        /// <summary>Accept a request; it is queued.</summary>
        /// <exception cref="RejectedException">As many are pending as may be. It counts as submitted all the same.</exception>
        public void Add(Entry entry)
        {
            submitted++;
            if (entries.Count >= options.MaxPending)
            {
                outcomes[(int)Outcome.Rejected]++;
                throw new RejectedException(options.MaxPending + " requests are pending; wait for a result before you send more");
            }
            entries.Add(entry.Id, entry);
            channels.Add(entry);
            WakeBy(entry.Deadline);
        }

        /// <summary>Return what follows from the events so far, and from the time.</summary>
        /// <param name="now">The clock's reading.</param>
        /// <param name="isConnected">Whether anything can be published.</param>
        /// <param name="gone">Receives the requests that ended without a reply.</param>
        /// <returns>The requests to publish now.</returns>
        public List<Sending> Take(double now, bool isConnected, out List<Ended> gone)
        {
            if (now >= WakeAt) OnTime(now);
            var sending = new List<Sending>();
            while (isConnected && inFlight < options.Window)
            {
                Entry entry = channels.Next(now);
                if (entry == null) break;
                Launch(entry, now);
                sending.Add(new Sending(entry, now));
            }
            if (isConnected && inFlight < options.Window) WakeBy(channels.OpensAt());
            gone = ended;
            if (gone.Count > 0) ended = new List<Ended>();
            return sending;
        }

        /// <summary>Handle the reason code of the PUBACK to an attempt. Success is no promise of a reply.</summary>
        public void Acked(Entry entry, int attempt, int code, double now)
        {
            if (code == 0 || !IsCurrent(entry, attempt)) return;
            if (code == NoSubscribers) OnUnserved(entry, now);
            else if (code == NotAuthorized)
                End(entry, new NotAuthorizedException(
                    "the broker does not allow this client to ask model " + entry.Model +
                    "; where access rules apply, the client's name must be that of its login"));
            else Refused(entry, "the broker turned it away with reason code 0x" + code.ToString("x"), now, 0);
        }

        /// <summary>Handle an attempt that can't be published: without a connection it is tried again, else the request ends.</summary>
        public void Unsent(Entry entry, int attempt, MqinferException error, double now)
        {
            if (!IsCurrent(entry, attempt)) return;
            if (error is NotConnectedException) BackOff(entry, now + options.Backoff.TotalMilliseconds);
            else End(entry, error);
        }

        /// <summary>Handle a reply that came on a topic.</summary>
        /// <returns>
        /// The request, which ends with this reply; null where the reply is late, belongs to no request, or turned the request
        /// away, which is sent again.
        /// </returns>
        public Entry Replied(Reply reply, string topic, double now)
        {
            if (!entries.TryGetValue(reply.Id, out Entry entry))
            {
                late++;
                return null;
            }
            if (!Belongs(entry, reply, topic))
            {
                mismatched++;
                return null;
            }
            channels.Open(entry.Channel);
            if (reply.Outcome == Outcome.Rejected)
            {
                OnRejected(entry, reply, now);
                return null;
            }
            if (entry.Place == Place.InFlight) channels.Measure(entry.Model, now - entry.Sent);
            Remove(entry);
            return entry;
        }

        /// <summary>Count the outcome of a request that a reply has ended.</summary>
        public void Settled(Outcome outcome) => outcomes[(int)outcome]++;

        /// <summary>
        /// Handle a damaged request or reply: sent again where the budget allows. The id may be damaged, and belong to another.
        /// </summary>
        public void Corrupted(string id)
        {
            if (entries.TryGetValue(id, out Entry entry) && entry.Place == Place.InFlight) Retry(entry);
        }

        /// <summary>End a request for its caller; return null where it has its outcome already.</summary>
        public Entry Cancel(string id)
        {
            if (!entries.TryGetValue(id, out Entry entry)) return null;
            Remove(entry);
            outcomes[(int)Outcome.Cancelled]++;
            return entry;
        }

        /// <summary>Handle a connection: after a loss patience does not end before workers had time to reconnect, too.</summary>
        public void Connected(double now)
        {
            if (wasLost) settledBy = now + options.Settling.TotalMilliseconds;
        }

        /// <summary>Queue everything in flight again: the connection was lost.</summary>
        public void Disconnected()
        {
            wasLost = true;
            channels.OpenAll();
            foreach (Entry entry in NewestInFlight()) Requeue(entry);
            foreach (Entry entry in entries.Values) entry.RefusedSince = null;
        }

        /// <summary>
        /// Handle the loss of a worker. Nobody knows which requests it had, so all that are in flight to its models are sent
        /// again; a worker that has one already ignores the second.
        /// </summary>
        public void WorkerLost(IReadOnlyList<string> models, double now)
        {
            settledBy = Math.Max(settledBy, now + options.Settling.TotalMilliseconds);
            foreach (Entry entry in NewestInFlight().Where(entry => models.Contains(entry.Model)))
            {
                entry.Losses++;
                if (entry.Losses == 1) Requeue(entry);
                else BackOff(entry, now + SetAsideMs);
            }
        }

        /// <summary>Handle a report of the requests that a worker worked on when it crashed: the second crash ends one.</summary>
        public void CrashedOn(IReadOnlyList<string> ids)
        {
            foreach (string id in ids)
            {
                if (!entries.TryGetValue(id, out Entry entry) || ++entry.Crashes < MostCrashes) continue;
                End(entry, new PoisonException(MostCrashes + " workers crashed while they ran this request; it is sent to no other"));
            }
        }

        /// <summary>End every request, and return them: the client closes, or will never be connected again.</summary>
        public List<Ended> Drain(MqinferException error)
        {
            foreach (Entry entry in entries.Values.ToList()) End(entry, error);
            List<Ended> gone = ended;
            ended = new List<Ended>();
            WakeAt = double.PositiveInfinity;
            return gone;
        }

        /// <summary>Return the outcome that an error stands for.</summary>
        public static Outcome OutcomeOf(MqinferException error)
        {
            switch (error.Code)
            {
                case "expired": return Outcome.Expired;
                case "rejected": return Outcome.Rejected;
                case "cancelled": return Outcome.Cancelled;
                case "superseded": return Outcome.Superseded;
                default: return Outcome.Error;
            }
        }

        /// <summary>Handle what is due, and find out what is due next.</summary>
        private void OnTime(double now)
        {
            WakeAt = double.PositiveInfinity;
            channels.Forget(now);
            foreach (Entry entry in entries.Values.ToList())
            {
                if (entry.Deadline <= now)
                {
                    End(entry, Expiry(entry));
                    continue;
                }
                if (entry.Place == Place.BackingOff && entry.ResumeAt <= now) Requeue(entry);
                if (entry.Place == Place.InFlight && entry.RetryAt <= now && !Retry(entry)) entry.RetryAt = now + NoBudgetMs;
                WakeBy(entry.Deadline);
                if (entry.Place == Place.InFlight) WakeBy(entry.RetryAt);
                if (entry.Place == Place.BackingOff) WakeBy(entry.ResumeAt);
            }
        }

        private void Launch(Entry entry, double now)
        {
            entry.Place = Place.InFlight;
            entry.Attempts++;
            entry.Sent = now;
            entry.RetryAt = now + channels.Silence(entry.Model);
            inFlight++;
            WakeBy(entry.RetryAt);
            if (entry.Attempts == 1) budget.Earn();
            else retries++;
        }

        /// <summary>Hold back all who ask for the model while there is patience, else end with <c>no_worker</c>.</summary>
        private void OnUnserved(Entry entry, double now)
        {
            double since = channels.Close(entry.Channel, now, options.Backoff.TotalMilliseconds);
            double patientUntil = Math.Max(Math.Max(since, entry.Submitted) + options.Patience.TotalMilliseconds, settledBy);
            channels.OpenAt(entry.Channel, patientUntil);
            if (now < patientUntil)
            {
                entry.RefusedSince = entry.RefusedSince ?? now;
                Requeue(entry);
                return;
            }
            string which = entry.Version == "" ? entry.Model : entry.Model + " in version " + entry.Version;
            End(entry, new NoWorkerException(
                "no worker serves model " + which + "; start one, or check its name and version" + served()));
        }

        private void OnRejected(Entry entry, Reply reply, double now)
        {
            if (reply.Error?.Code == "corrupted") Corrupted(entry.Id);
            else if (entry.Place == Place.InFlight)
            {
                double pause = reply.Parameters["retry_after"] is long us && us > 0 ? us / 1000.0 : 0;
                Refused(entry, reply.Error?.Message ?? "busy", now, pause);
            }
        }

        /// <summary>Send a request again later while there is patience, else end it as <c>rejected</c>.</summary>
        private void Refused(Entry entry, string why, double now, double pause)
        {
            entry.RefusedSince = entry.RefusedSince ?? now;
            double patientUntil = Math.Max(entry.RefusedSince.Value + options.Patience.TotalMilliseconds, settledBy);
            if (now >= patientUntil)
            {
                End(entry, new RejectedException(why));
                return;
            }
            double backoff = options.Backoff.TotalMilliseconds * Math.Pow(2, Math.Min(entry.Attempts - 1, 30));
            BackOff(entry, Math.Min(now + Math.Min(Math.Max(backoff, pause), LongestPauseMs), patientUntil));
        }

        /// <summary>Send a request in flight again at once if the budget allows it.</summary>
        private bool Retry(Entry entry)
        {
            if (!budget.Spend())
            {
                withheld++;
                return false;
            }
            Requeue(entry);
            return true;
        }

        /// <summary>List what is in flight, newest first: queued again in this order, the oldest ends up first.</summary>
        private List<Entry> NewestInFlight() =>
            entries.Values.Where(entry => entry.Place == Place.InFlight).OrderByDescending(entry => entry.Submitted).ToList();

        private void Requeue(Entry entry)
        {
            if (entry.Place == Place.InFlight) inFlight--;
            else if (entry.Place != Place.BackingOff) return;
            entry.Place = Place.Queued;
            channels.Add(entry, true);
        }

        private void BackOff(Entry entry, double until)
        {
            if (entry.Place == Place.InFlight) inFlight--;
            entry.Place = Place.BackingOff;
            entry.ResumeAt = until;
            WakeBy(until);
        }

        private void End(Entry entry, MqinferException error)
        {
            Remove(entry);
            outcomes[(int)OutcomeOf(error)]++;
            ended.Add(new Ended(entry, error));
        }

        private void Remove(Entry entry)
        {
            entries.Remove(entry.Id);
            if (entry.Place == Place.InFlight) inFlight--;
            else if (entry.Place == Place.Queued) channels.Remove(entry);
            entry.Place = Place.Ended;
        }

        private void WakeBy(double time) => WakeAt = Math.Min(WakeAt, time);

        /// <summary>Return whether an attempt is the last one, and still without an answer.</summary>
        private static bool IsCurrent(Entry entry, int attempt) => entry.Place == Place.InFlight && entry.Attempts == attempt;

        /// <summary>Return whether a reply is of the model and version that were asked, and came where it was to come.</summary>
        private static bool Belongs(Entry entry, Reply reply, string topic) =>
            topic == entry.ResponseTopic && reply.ModelName == entry.Model && reply.Attempt <= entry.Attempts &&
            (entry.Version == "" || entry.Version == reply.ModelVersion || reply.Outcome != Outcome.Ok);

        private static ExpiredException Expiry(Entry entry)
        {
            string seconds = ((entry.Deadline - entry.Submitted) / 1000).ToString(System.Globalization.CultureInfo.InvariantCulture) + " s";
            if (entry.Attempts == 0)
                return new ExpiredException("expired after " + seconds + " before it could be sent (window full, or not connected)");
            string turnedAway = entry.RefusedSince == null ? "" : "; it was turned away (no worker, or busy ones)";
            return new ExpiredException("no reply within " + seconds + " and " + entry.Attempts + " attempts" + turnedAway);
        }
    }

    /// <summary>A request that got no reply, and why.</summary>
    internal struct Ended
    {
        public readonly Entry Entry;
        public readonly MqinferException Error;

        public Ended(Entry entry, MqinferException error)
        {
            Entry = entry;
            Error = error;
        }
    }

    /// <summary>One attempt of a request, which is to be published now.</summary>
    internal struct Sending
    {
        public readonly Entry Entry;
        public readonly int Attempt;

        /// <summary>Milliseconds until the deadline.</summary>
        public readonly double LeftMs;

        public Sending(Entry entry, double now)
        {
            Entry = entry;
            Attempt = entry.Attempts;
            LeftMs = Math.Max(0, entry.Deadline - now);
        }
    }
}
