using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Linq;
using System.Security.Cryptography;
using System.Threading;
using System.Threading.Tasks;
#if MQTTNET
using Transport = Mqinfer.MqttNetTransport;
#else
using Transport = Mqinfer.SocketTransport;
#endif

namespace Mqinfer
{
    /// <summary>
    /// A connection to a broker, for requests to any number of models, from any thread. Make one for a process and keep it.
    ///
    /// Until its deadline a request is sent again where a worker is lost, busy or silent, the connection was lost, or a message
    /// was damaged. So a model may run a request more than once; there is one result.
    /// </summary>
    public sealed class Client : IDisposable
    {
        private const double TickMs = 1000;
        private const int PropertyBytes = 65536;
        private readonly object gate = new object();
        private readonly Stopwatch clock = Stopwatch.StartNew();
        private readonly ClientOptions options;
        private readonly Topics topics;
        private readonly PendingTable table;
        private readonly Workers workers = new Workers();
        private readonly Dictionary<string, Waiting> waiting = new Dictionary<string, Waiting>();
        private readonly Link link;
        private readonly Watches watches;
        private readonly Thread timers;
        private MqinferException failure;

        /// <summary>When the timers wake by themselves.</summary>
        private double sleepsUntil;
        private long malformed, retained, badStates;

        private Client(string url, ClientOptions options)
        {
            options.Check();
            this.options = options;
            var broker = new BrokerUrl(url);
            string user = options.User ?? broker.User, password = options.Password ?? broker.Password;
            if (user == null && password != null) throw new ConfigException("a password needs the user that it is of; state both");
            Name = Topics.Checked(NameKind.Client, options.Name ?? (Topics.IsName(NameKind.Client, user) ? user : "cs-" + NewId().Substring(0, 12)));
            topics = new Topics(options.Root);
            table = new PendingTable(options, workers.Served);
            var login = new ConnectOptions
            {
                ClientId = Name + "~" + NewId().Substring(0, 16),
                User = user,
                Password = password,
                Tls = new Tls(options.CaFile, options.CertificateFile, options.CertificatePassword),
                MaximumPacketSize = options.Limits.PayloadBytes + PropertyBytes,
            };
            link = new Link(broker.Addresses, login, () => new Transport(), Now)
            {
                OnConnected = OnConnected,
                OnLost = OnLost,
                OnRefused = Fail,
            };
            watches = new Watches(link, topics);
            timers = new Thread(RunTimers) { IsBackground = true, Name = "mqinfer timers" };
        }

        /// <summary>The client's name in its topics.</summary>
        public string Name { get; }

        /// <summary>Whether a request would be sent now.</summary>
        public bool IsConnected => link.IsConnected;

        /// <summary>Connect to a broker; the client then reconnects by itself, until it is disposed of.</summary>
        /// <param name="url"><c>mqtt://</c> or <c>mqtts://</c>; the hosts of standbys behind commas.</param>
        /// <param name="options">How it connects and sends.</param>
        /// <exception cref="BrokerUnreachableException">No broker answered within the time.</exception>
        /// <exception cref="NotAuthorizedException">The broker refused the login, or the results of this name.</exception>
        /// <exception cref="BadTopicException">The name or the root breaks the naming rules.</exception>
        /// <exception cref="ConfigException">The URL, a file or an option is wrong.</exception>
        public static async Task<Client> ConnectAsync(string url, ClientOptions options = null)
        {
            var client = new Client(url, options ?? new ClientOptions());
            try
            {
                await client.Start().ConfigureAwait(false);
                return client;
            }
            catch
            {
                client.Dispose();
                throw;
            }
        }

        /// <summary>As <see cref="ConnectAsync"/>, but wait.</summary>
        public static Client Connect(string url, ClientOptions options = null) => ConnectAsync(url, options).GetAwaiter().GetResult();

        /// <summary>Send arrays to a model; the task ends with its result, at the deadline at the latest.</summary>
        /// <param name="model">Name of the model.</param>
        /// <param name="inputs">Its inputs.</param>
        /// <param name="options">Version, deadline, outputs, …</param>
        /// <param name="cancel">Cancels the request, also at the worker that has it; the task is cancelled then.</param>
        /// <exception cref="MqinferException">
        /// The class says what to do: <see cref="InvalidRequestException"/> and below, <see cref="ModelNotFoundException"/>,
        /// <see cref="ModelFailedException"/>, <see cref="UnansweredException"/> and below, <see cref="LinkException"/> and below.
        /// </exception>
        public Task<Result> InferAsync(
            string model, IReadOnlyList<Tensor> inputs, InferOptions options = null, CancellationToken cancel = default(CancellationToken))
        {
            try
            {
                return Submit(model, inputs, options ?? new InferOptions(), cancel);
            }
            catch (MqinferException error)
            {
                return Task.FromException<Result>(error);
            }
        }

        /// <summary>The same for a model with one input.</summary>
        public Task<Result> InferAsync(
            string model, Tensor input, InferOptions options = null, CancellationToken cancel = default(CancellationToken)) =>
            InferAsync(model, new[] { input }, options, cancel);

        /// <summary>As <c>InferAsync</c>, but wait for the result.</summary>
        public Result Infer(string model, params Tensor[] inputs) => InferAsync(model, inputs).GetAwaiter().GetResult();

        /// <summary>Receive the results of others: what workers reply to any client of a model.</summary>
        /// <param name="model">One model.</param>
        /// <param name="buffer">Replies that wait for the program, of 64 MiB at most.</param>
        /// <exception cref="NotAuthorizedException">The broker refused the subscription.</exception>
        public Task<Watch> WatchAsync(string model, int buffer = 256) => watches.Open(model, buffer, options.Limits);

        /// <summary>Return what became of all requests so far.</summary>
        public Counters Counters()
        {
            lock (gate)
            {
                Counters found = table.Counters();
                found.Malformed = malformed;
                found.Retained = retained;
                found.BadStates = badStates;
                return found;
            }
        }

        /// <summary>End what is pending as <c>cancelled</c>, end all watches, and disconnect.</summary>
        public void Dispose()
        {
            Fail(new CancelledException("the client was closed"));
            watches.Close();
            link.Close();
            if (timers.IsAlive && timers != Thread.CurrentThread) timers.Join();
        }

        private static string NewId()
        {
            var bytes = new byte[16];
            using (var random = RandomNumberGenerator.Create()) random.GetBytes(bytes);
            return string.Concat(bytes.Select(each => each.ToString("x2")));
        }

        private static byte[] BytesOf(string id) =>
            Enumerable.Range(0, id.Length / 2).Select(place => Convert.ToByte(id.Substring(2 * place, 2), 16)).ToArray();

        private double Now() => clock.Elapsed.TotalMilliseconds;

        private async Task Start()
        {
            Task results = link.Subscribe(topics.ResultsOfClient(Name), 1, OnReply);
            _ = link.Subscribe(topics.WorkerStates, 1, OnWorker); // where this is refused, losses show by silence
            timers.Start();
            Task first = link.Start();
            Task done = await Task.WhenAny(first, Task.Delay(options.ConnectTimeout)).ConfigureAwait(false);
            if (done != first)
                throw new BrokerUnreachableException(
                    "no connection to the broker within " + options.ConnectTimeout.TotalSeconds + " s: " +
                    (link.Reason == "" ? "no answer" : link.Reason));
            await first.ConfigureAwait(false);
            try
            {
                await results.ConfigureAwait(false);
            }
            catch (NotAuthorizedException error)
            {
                throw new NotAuthorizedException(error.Message + "; where access rules apply, the client's name must be that of its login");
            }
        }

        private Task<Result> Submit(string model, IReadOnlyList<Tensor> inputs, InferOptions asked, CancellationToken cancel)
        {
            if (cancel.IsCancellationRequested) return Task.FromCanceled<Result>(cancel);
            double timeoutMs = ClientOptions.CheckedTimeout(asked.Timeout ?? options.Timeout).TotalMilliseconds;
            string id = NewId(), version = asked.Version ?? "";
            string responseTopic = topics.Result(model, Name, id);
            topics.Infer(model, version, Name);
            Request request = NewRequest(id, model, version, responseTopic, inputs, asked);
            Envelope.Check(request);
            var made = new Waiting(request);
            lock (gate)
            {
                if (failure != null) throw failure;
                table.Add(new Entry(id, model, version, responseTopic, Now(), timeoutMs));
                waiting.Add(id, made);
            }
            if (cancel.CanBeCanceled) made.ListenTo(cancel.Register(() => Cancel(id, cancel)));
            Pump();
            return made.Source.Task;
        }

        private static Request NewRequest(
            string id, string model, string version, string responseTopic, IReadOnlyList<Tensor> inputs, InferOptions asked)
        {
            var parameters = new Parameters();
            foreach (var each in asked.Parameters) parameters.Add(each.Key, each.Value);
            if (!string.IsNullOrEmpty(asked.OutputEncoding)) parameters.Add("output_encoding", asked.OutputEncoding);
            return new Request
            {
                Id = id,
                ModelName = model,
                ModelVersion = version,
                Inputs = inputs,
                Outputs = asked.Outputs,
                Priority = asked.Priority,
                ResponseTopic = responseTopic,
                Capture = asked.Capture,
                Parameters = parameters,
            };
        }

        /// <summary>Carry out what follows from the events and the time. Any thread may, and none waits for another here.</summary>
        private void Pump()
        {
            List<Sending> sending;
            List<Ended> gone;
            lock (gate)
            {
                sending = table.Take(Now(), link.IsConnected, out gone);
                if (table.WakeAt < sleepsUntil) Monitor.Pulse(gate);
            }
            foreach (Ended each in gone) Hand(each);
            foreach (Sending each in sending) Publish(each);
        }

        private void Publish(Sending sending)
        {
            Entry entry = sending.Entry;
            Waiting made;
            lock (gate)
                if (!waiting.TryGetValue(entry.Id, out made))
                    return;
            try
            {
                link.Publish(Publication(made.Request, sending), code => OnAck(sending, code));
            }
            catch (Exception error)
            {
                var known = error as MqinferException ?? new MqinferException("the request can't be sent: " + error.Message, error);
                lock (gate) table.Unsent(entry, sending.Attempt, known, Now());
                Pump();
            }
        }

        private void OnAck(Sending sending, int code)
        {
            if (code == 0) return;
            lock (gate) table.Acked(sending.Entry, sending.Attempt, code, Now());
            Pump();
        }

        private Outgoing Publication(Request request, Sending sending)
        {
            byte[] payload = Envelope.EncodeRequest(request.Attempted((long)(1000 * sending.LeftMs), sending.Attempt));
            return new Outgoing
            {
                Topic = topics.Infer(request.ModelName, request.ModelVersion, Name),
                Payload = payload,
                ContentType = Envelope.ContentType,
                ResponseTopic = request.ResponseTopic,
                Correlation = BytesOf(request.Id),
                Expiry = (uint)Math.Max(1, Math.Ceiling(sending.LeftMs / 1000)),
                Checksum = Envelope.Checksum(new ArraySegment<byte>(payload)),
            };
        }

        private void OnConnected()
        {
            lock (gate) table.Connected(Now());
            Pump();
        }

        private void OnLost()
        {
            lock (gate) table.Disconnected();
            Pump();
        }

        private void OnWorker(Incoming message)
        {
            try
            {
                string worker = topics.WorkerOf(message.Topic);
                if (worker == null) return;
                WorkerState state = WorkerState.Read(worker, message.Payload);
                lock (gate)
                {
                    IReadOnlyList<string> lost = workers.Observe(worker, state, out IReadOnlyList<string> crashedOn);
                    if (crashedOn.Count > 0) table.CrashedOn(crashedOn);
                    if (lost.Count > 0) table.WorkerLost(lost, Now());
                }
            }
            catch (MqinferException)
            {
                lock (gate) badStates++;
            }
            Pump();
        }

        private void OnReply(Incoming message)
        {
            if (message.IsRetained)
            {
                lock (gate) retained++;
                return;
            }
            bool isDamaged = message.Checksum != null && message.Checksum != Envelope.Checksum(message.Payload);
            Reply reply = isDamaged ? null : Read(message.Payload);
            if (reply != null) OnReadable(reply, message.Topic);
            else
                lock (gate)
                {
                    malformed++;
                    if (isDamaged) table.Corrupted(message.Correlation);
                }
            Pump();
        }

        private Reply Read(ArraySegment<byte> payload)
        {
            try
            {
                return Envelope.DecodeReply(payload, options.Limits);
            }
            catch (MqinferException)
            {
                return null;
            }
        }

        private void OnReadable(Reply reply, string topic)
        {
            double now = Now();
            Entry entry;
            lock (gate) entry = table.Replied(reply, topic, now);
            if (entry == null) return;
            Waiting made = Taken(entry);
            Result result = null;
            MqinferException error = null;
            try
            {
                if (reply.Outcome == Outcome.Ok) result = Result.Of(reply, entry, made.Request.Capture, now, options.Limits);
                else error = FailureOf(reply);
            }
            catch (Exception other)
            {
                error = other as MqinferException ?? new MqinferException("the reply can't be decoded: " + other.Message, other);
            }
            lock (gate) table.Settled(error == null || reply.Outcome != Outcome.Ok ? reply.Outcome : PendingTable.OutcomeOf(error));
            if (error == null) made.Source.TrySetResult(result);
            else made.Source.TrySetException(error);
        }

        private static MqinferException FailureOf(Reply reply)
        {
            string outcome = HeaderWriter.Word(reply.Outcome);
            return MqinferException.Of(reply.Error?.Code ?? outcome, reply.Error?.Message ?? "the request ended as " + outcome);
        }

        private void Cancel(string id, CancellationToken cancel)
        {
            Entry entry;
            lock (gate) entry = table.Cancel(id);
            if (entry == null) return;
            Taken(entry).Source.TrySetCanceled(cancel);
            Pump();
            if (entry.Attempts == 0) return;
            try
            {
                byte[] body = Text.Utf8.GetBytes("{\"ids\":[\"" + id + "\"],\"outcome\":\"cancelled\"}");
                link.Publish(new Outgoing { Topic = topics.Cancel(entry.Model, Name), Payload = body }, code => { });
            }
            catch (MqinferException)
            {
                // Without a connection no worker answers it either.
            }
        }

        private void Fail(MqinferException error)
        {
            List<Ended> gone;
            lock (gate)
            {
                failure = failure ?? error;
                gone = table.Drain(new CancelledException(error.Message));
                Monitor.Pulse(gate);
            }
            foreach (Ended each in gone) Hand(each);
        }

        private void Hand(Ended ended) => Taken(ended.Entry).Source.TrySetException(ended.Error);

        /// <summary>Return who waits for a request, which has just left the table.</summary>
        private Waiting Taken(Entry entry)
        {
            Waiting made;
            lock (gate)
            {
                made = waiting[entry.Id];
                waiting.Remove(entry.Id);
            }
            made.Forget();
            return made;
        }

        private void RunTimers()
        {
            try
            {
                for (double nextTick = Now() + TickMs; WaitUntil(nextTick);)
                {
                    Pump();
                    if (Now() < nextTick) continue;
                    nextTick = Now() + TickMs;
                    link.Tick();
                }
            }
            catch (Exception error)
            {
                Fail(new MqinferException("the client's timers failed: " + error.Message, error));
            }
        }

        /// <summary>Wait until something is due; return false where the client has ended.</summary>
        private bool WaitUntil(double nextTick)
        {
            lock (gate)
            {
                while (failure == null)
                {
                    sleepsUntil = Math.Min(table.WakeAt, nextTick);
                    double wait = sleepsUntil - Now();
                    if (wait <= 0) return true;
                    Monitor.Wait(gate, TimeSpan.FromMilliseconds(Math.Ceiling(wait)));
                }
                return false;
            }
        }

        /// <summary>Who waits for a request.</summary>
        private sealed class Waiting
        {
            private CancellationTokenRegistration registration;
            private bool isOver;

            public Waiting(Request request) => Request = request;

            public Request Request { get; }

            public TaskCompletionSource<Result> Source { get; } =
                new TaskCompletionSource<Result>(TaskCreationOptions.RunContinuationsAsynchronously);

            /// <summary>Keep what connects it with the caller's token, until it is over.</summary>
            public void ListenTo(CancellationTokenRegistration made)
            {
                lock (Source)
                {
                    registration = made;
                    if (!isOver) return;
                }
                made.Dispose();
            }

            public void Forget()
            {
                lock (Source) isOver = true;
                registration.Dispose();
            }
        }
    }
}
