using System;
using System.Collections.Generic;
using System.Linq;
using System.Security.Cryptography;
using System.Threading;
using System.Threading.Tasks;

namespace Mqinfer
{
    /// <summary>
    /// One connection after another, with the same subscriptions, until it is closed or refused. Its thread connects and reads.
    /// </summary>
    internal sealed class Link
    {
        private const double LeastPauseMs = 250, MostPauseMs = 5000;

        /// <summary>A connection that stood so long is lost to something new: pauses begin anew.</summary>
        private const double GoodMs = 5000;
        private static readonly TimeSpan ClosePatience = TimeSpan.FromSeconds(1);
        private readonly object gate = new object();
        private readonly IReadOnlyList<Address> addresses;
        private readonly ConnectOptions options;
        private readonly Func<ITransport> makeTransport;
        private readonly Func<double> clock;
        private readonly Random random = new Random();
        private readonly List<Subscription> subscriptions = new List<Subscription>();
        private readonly TaskCompletionSource<bool> first = NewSource();
        private readonly Thread thread;
        private ITransport transport;
        private string reason = "";
        private bool isConnected, isClosed;
        private int lastIdentifier;

        public Link(IReadOnlyList<Address> addresses, ConnectOptions options, Func<ITransport> makeTransport, Func<double> clock)
        {
            this.addresses = addresses;
            this.options = options;
            this.makeTransport = makeTransport;
            this.clock = clock;
            thread = new Thread(Run) { IsBackground = true, Name = "mqinfer read" };
        }

        /// <summary>Is called when the connection stands and every subscription is answered.</summary>
        public Action OnConnected { get; set; }

        public Action OnLost { get; set; }

        /// <summary>Is called once, where the broker refuses the client for good.</summary>
        public Action<MqinferException> OnRefused { get; set; }

        public bool IsConnected => Volatile.Read(ref isConnected);

        /// <summary>Why there is no connection.</summary>
        public string Reason
        {
            get
            {
                lock (gate) return reason;
            }
        }

        /// <summary>Begin to connect; the task ends with the first connection, or with a refusal.</summary>
        public Task Start()
        {
            thread.Start();
            return first.Task;
        }

        /// <summary>Receive what matches a filter, on this connection and all later ones.</summary>
        /// <returns>Ends with the broker's answer; with an exception where it refuses.</returns>
        public Task Subscribe(string filter, int qos, Action<Incoming> onMessage)
        {
            Subscription added;
            ITransport current;
            lock (gate)
            {
                added = new Subscription(filter, qos, ++lastIdentifier, onMessage);
                subscriptions.Add(added);
                current = isConnected ? transport : null;
                if (isClosed) added.Refuse(NotConnected());
            }
            current?.Subscribe(filter, qos, added.Identifier, code => OnSuback(added, code));
            return added.Answer.Task;
        }

        public void Unsubscribe(string filter)
        {
            ITransport current;
            lock (gate)
            {
                subscriptions.RemoveAll(each => each.Filter == filter);
                current = isConnected ? transport : null;
            }
            current?.Unsubscribe(filter);
        }

        /// <summary>Publish; errors as of a transport, and:</summary>
        /// <exception cref="NotConnectedException">There is no connection.</exception>
        public void Publish(Outgoing message, Action<int> onAck)
        {
            ITransport current;
            lock (gate) current = isConnected ? transport : throw NotConnected();
            current.Publish(message, onAck);
        }

        /// <summary>Keep the connection alive; to be called once a second.</summary>
        public void Tick()
        {
            ITransport current;
            lock (gate) current = transport;
            current?.Tick();
        }

        /// <summary>Disconnect for good.</summary>
        public void Close()
        {
            ITransport current;
            lock (gate)
            {
                if (isClosed && !thread.IsAlive) return;
                isClosed = true;
                if (reason == "") reason = "the client was closed";
                isConnected = false;
                current = transport;
                Monitor.PulseAll(gate);
            }
            current?.Close(ClosePatience);
            if (thread.IsAlive && thread != Thread.CurrentThread) thread.Join(ClosePatience);
        }

        private static TaskCompletionSource<bool> NewSource() =>
            new TaskCompletionSource<bool>(TaskCreationOptions.RunContinuationsAsynchronously);

        private NotConnectedException NotConnected() =>
            new NotConnectedException("not connected to the broker" + (reason == "" ? "" : ": " + reason) + "; nothing was sent");

        private void Run()
        {
            int place = 0, tries = 0;
            while (true)
            {
                double begun = clock();
                bool stood = false;
                try
                {
                    stood = Connect(addresses[place]);
                }
                catch (Exception error)
                {
                    var refusal = error as RefusedException;
                    Lose(addresses[place] + ": " + error.Message);
                    if (refusal != null && refusal.IsFinal && place == 0) // the first broker decides who may enter
                    {
                        Refuse(Refusal(refusal));
                        return;
                    }
                }
                if (stood && clock() - begun >= GoodMs) tries = 0;
                bool hasNext = !stood && place + 1 < addresses.Count;
                place = hasNext ? place + 1 : 0;
                double longest = Math.Min(LeastPauseMs * Math.Pow(2, tries), MostPauseMs);
                if (!hasNext && longest < MostPauseMs) tries++;
                if (!Pause(hasNext ? 0 : longest * (1 - random.NextDouble() / 2))) return;
            }
        }

        /// <summary>Connect, and read until the connection ends; return whether it stood.</summary>
        private bool Connect(Address address)
        {
            ITransport made = makeTransport();
            lock (gate)
            {
                if (isClosed) return false;
                transport = made;
            }
            try
            {
                made.Open(address, options, Deliver);
                Renew(made);
                Lose(made.Run());
                return true;
            }
            finally
            {
                made.Close(TimeSpan.Zero);
            }
        }

        /// <summary>
        /// Renew the subscriptions, and only then report the connection: a reply to what is published has to find its way.
        /// </summary>
        private void Renew(ITransport made)
        {
            Subscription[] all;
            lock (gate) all = subscriptions.ToArray();
            int left = all.Length;
            Action answered = () =>
            {
                if (--left == 0) Stand(made, all);
            };
            foreach (Subscription each in all)
                made.Subscribe(each.Filter, each.Qos, each.Identifier, code =>
                {
                    OnSuback(each, code);
                    answered();
                });
        }

        /// <summary>The connection stands. Who subscribed meanwhile is subscribed now.</summary>
        private void Stand(ITransport made, Subscription[] renewed)
        {
            List<Subscription> others;
            lock (gate)
            {
                if (isClosed) return;
                reason = "";
                isConnected = true;
                others = subscriptions.Except(renewed).ToList();
            }
            foreach (Subscription each in others)
                made.Subscribe(each.Filter, each.Qos, each.Identifier, code => OnSuback(each, code));
            OnConnected();
            first.TrySetResult(true);
        }

        private static void OnSuback(Subscription subscription, int code)
        {
            if (code < 0x80) subscription.Answer.TrySetResult(true);
            else subscription.Refuse(new NotAuthorizedException(
                "the broker refused the subscription " + subscription.Filter + " (reason code 0x" + code.ToString("x") + ")"));
        }

        private void Lose(string why)
        {
            bool stood;
            lock (gate)
            {
                stood = isConnected;
                isConnected = false;
                transport = null;
                reason = why;
            }
            if (stood) OnLost();
        }

        private void Refuse(MqinferException error)
        {
            List<Subscription> all;
            lock (gate)
            {
                isClosed = true;
                all = subscriptions.ToList();
            }
            foreach (Subscription each in all) each.Refuse(error);
            OnRefused(error);
            first.TrySetException(error);
        }

        private MqinferException Refusal(RefusedException refusal)
        {
            string message = "the broker at " + addresses[0] + " refused the connection: " + refusal.Message;
            if (!refusal.NeedsLogin) return new LinkException(message);
            return new NotAuthorizedException(
                message + "; " + (options.User == null ? "it wants a user and a password" : "check user and password"));
        }

        /// <summary>Wait before the next attempt; return whether there is one.</summary>
        private bool Pause(double ms)
        {
            lock (gate)
            {
                if (!isClosed) Monitor.Wait(gate, TimeSpan.FromMilliseconds(ms));
                return !isClosed;
            }
        }

        /// <summary>
        /// Hand a message to whom it is for. A broker sends it once for each subscription that it matches, or once for all;
        /// without identifiers two overlapping subscriptions could not tell which.
        /// </summary>
        private void Deliver(Incoming message)
        {
            List<Subscription> receivers;
            lock (gate)
                receivers = subscriptions.Where(each => message.Subscriptions.Count > 0
                    ? message.Subscriptions.Contains(each.Identifier)
                    : Topics.Matches(each.Filter, message.Topic)).ToList();
            foreach (Subscription each in receivers) each.OnMessage(message);
        }

        private sealed class Subscription
        {
            public Subscription(string filter, int qos, int identifier, Action<Incoming> onMessage)
            {
                Filter = filter;
                Qos = qos;
                Identifier = identifier;
                OnMessage = onMessage;
            }

            public string Filter { get; }

            public int Qos { get; }

            public int Identifier { get; }

            public Action<Incoming> OnMessage { get; }

            /// <summary>Ends with the broker's first answer.</summary>
            public TaskCompletionSource<bool> Answer { get; } = NewSource();

            public void Refuse(MqinferException error)
            {
                Answer.TrySetException(error);
                _ = Answer.Task.Exception; // it is no matter if nobody asks
            }
        }
    }
}
