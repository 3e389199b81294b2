using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Net;
using System.Net.Sockets;
using System.Security.Authentication;
using System.Threading;

namespace Mqinfer
{
    /// <summary>MQTT 5 over a socket, with or without TLS.</summary>
    internal sealed class SocketTransport : ITransport
    {
        private const int ConnectTimeoutMs = 10000;
        private const int KeepAliveSeconds = 60;
        private const int MostPacketIds = 65535;
        private readonly object gate = new object();
        private readonly Dictionary<int, Action<int>> unanswered = new Dictionary<int, Action<int>>();

        /// <summary>Publications beyond the broker's Receive Maximum; bounded by what its callers have in flight.</summary>
        private readonly Queue<KeyValuePair<Outgoing, Action<int>>> waiting = new Queue<KeyValuePair<Outgoing, Action<int>>>();
        private readonly HashSet<int> published = new HashSet<int>();
        private readonly Liveness liveness;
        private readonly Stopwatch clock = Stopwatch.StartNew();
        private readonly ManualResetEventSlim hasEnded = new ManualResetEventSlim();
        private Socket socket;
        private Action<Incoming> onMessage;
        private PacketStream packets;
        private WriteQueue outgoing;
        private string reason = "";
        private int lastId;
        private int receiveMaximum = MostPacketIds;
        private long largest = long.MaxValue;
        private bool identifies = true;
        private bool isOpen;

        public SocketTransport() => liveness = new Liveness(() => clock.Elapsed.TotalMilliseconds);

        /// <inheritdoc/>
        public long Open(Address address, ConnectOptions options, Action<Incoming> onMessage)
        {
            this.onMessage = onMessage;
            try
            {
                Connect(address);
                Stream stream = new NetworkStream(socket, false);
                if (address.UsesTls) stream = options.Tls.Secured(stream, address.Host);
                packets = new PacketStream(stream, options.MaximumPacketSize, liveness);
                outgoing = new WriteQueue(stream, liveness.Left, error => End("the connection broke: " + error.Message));
                outgoing.Add(PacketWriter.Connect(options, KeepAliveSeconds));
                ReadConnack(packets.Read());
            }
            catch (Exception error) when (IsLoss(error))
            {
                End(reason == "" ? Deepest(error).Message : reason);
                throw new BrokerUnreachableException(reason);
            }
            catch (RefusedException error)
            {
                End(error.Message);
                throw;
            }
            lock (gate) isOpen = true;
            return largest;
        }

        /// <inheritdoc/>
        public string Run()
        {
            try
            {
                while (true) Handle(packets.Read());
            }
            catch (Exception error) when (IsLoss(error))
            {
                End(Deepest(error).Message);
            }
            hasEnded.Set();
            return reason;
        }

        /// <inheritdoc/>
        public void Publish(Outgoing message, Action<int> onAck)
        {
            PacketWriter.Check(message, largest);
            lock (gate)
            {
                if (!isOpen) return;
                waiting.Enqueue(new KeyValuePair<Outgoing, Action<int>>(message, onAck));
                PublishWaiting();
            }
        }

        /// <inheritdoc/>
        public void Subscribe(string filter, int qos, int identifier, Action<int> onAck)
        {
            lock (gate)
            {
                if (!isOpen) return;
                int id = NewId(onAck);
                outgoing.Add(PacketWriter.Subscribe(id, filter, qos, identifies ? identifier : 0));
            }
        }

        /// <inheritdoc/>
        public void Unsubscribe(string filter)
        {
            lock (gate)
            {
                if (!isOpen) return;
                int id = NewId(code => { });
                outgoing.Add(PacketWriter.Unsubscribe(id, filter));
            }
        }

        /// <inheritdoc/>
        public void Tick()
        {
            Liveness.Verdict verdict = liveness.Tick();
            if (verdict == Liveness.Verdict.Dead) End("the broker does not answer");
            if (verdict != Liveness.Verdict.Ping) return;
            lock (gate)
            {
                if (!isOpen) return;
                liveness.Sent(true);
                outgoing.Add(PacketWriter.Empty(PacketKind.Pingreq));
            }
        }

        /// <inheritdoc/>
        public void Close(TimeSpan patience)
        {
            bool isInOrder;
            lock (gate) isInOrder = isOpen && outgoing.Add(PacketWriter.Empty(PacketKind.Disconnect));
            if (isInOrder) hasEnded.Wait(patience); // the broker closes the connection when it gets there
            End("the connection was closed");
        }

        /// <summary>Connect to the first address of the host that answers.</summary>
        private void Connect(Address address)
        {
            Exception last = new SocketException((int)SocketError.HostNotFound);
            foreach (IPAddress each in Dns.GetHostAddresses(address.Host))
            {
                try
                {
                    Take(new Socket(each.AddressFamily, SocketType.Stream, ProtocolType.Tcp) { NoDelay = true });
                    if (socket.ConnectAsync(each, address.Port).Wait(ConnectTimeoutMs)) return;
                    last = new TimeoutException("no answer within " + ConnectTimeoutMs / 1000 + " s");
                }
                catch (Exception error) when (error is AggregateException || error is SocketException)
                {
                    last = error;
                }
                socket?.Close();
            }
            throw new IOException("no connection", last);
        }

        /// <summary>Use a socket, unless the connection was ended meanwhile.</summary>
        private void Take(Socket made)
        {
            lock (gate)
            {
                if (reason != "") throw new IOException(reason);
                socket = made;
            }
        }

        private void ReadConnack(PacketReader packet)
        {
            if (packet.Kind != PacketKind.Connack) throw new InvalidDataException("the broker's first packet is no CONNACK");
            packet.Number(1);
            int code = packet.Number(1);
            var properties = packet.Properties().ToList();
            if (code != 0) throw new RefusedException(code, (string)Stated(properties, Property.Reason, ""));
            if ((int)Stated(properties, Property.MaximumQos, 1) == 0) throw new RefusedException(0x9b, "the broker has no QoS 1");
            largest = (uint)(int)Stated(properties, Property.MaximumPacketSize, -1);
            receiveMaximum = (int)Stated(properties, Property.ReceiveMaximum, MostPacketIds);
            identifies = (int)Stated(properties, Property.SubscriptionIdentifierAvailable, 1) == 1;
            int keepAlive = (int)Stated(properties, Property.ServerKeepAlive, KeepAliveSeconds);
            if (keepAlive > 0) liveness.Keep(1000.0 * keepAlive);
            liveness.Answered(false);
        }

        private static object Stated(List<KeyValuePair<int, object>> properties, int property, object otherwise) =>
            properties.Where(each => each.Key == property).Select(each => each.Value).DefaultIfEmpty(otherwise).First();

        private void Handle(PacketReader packet)
        {
            switch (packet.Kind)
            {
                case PacketKind.Publish:
                    Incoming message = packet.Publish(out int packetId);
                    onMessage(message);
                    if (packetId > 0) outgoing.Add(PacketWriter.Puback(packetId));
                    break;
                case PacketKind.Puback:
                case PacketKind.Suback:
                case PacketKind.Unsuback:
                    OnAnswer(packet.Answer(out int code), code);
                    break;
                case PacketKind.Pingresp:
                    lock (gate) liveness.Answered(unanswered.Count > 0);
                    break;
                case PacketKind.Disconnect:
                    int why = packet.IsAtEnd ? 0 : packet.Number(1);
                    End("the broker closed the connection (reason code 0x" + why.ToString("x") + ")");
                    break;
                default:
                    throw new InvalidDataException("the broker sent a packet that no client gets");
            }
        }

        private void OnAnswer(int packetId, int code)
        {
            Action<int> onAck;
            lock (gate)
            {
                if (!unanswered.TryGetValue(packetId, out onAck)) return;
                unanswered.Remove(packetId);
                liveness.Answered(unanswered.Count > 0);
                published.Remove(packetId);
                PublishWaiting();
            }
            onAck(code);
        }

        private void PublishWaiting()
        {
            while (isOpen && waiting.Count > 0 && published.Count < receiveMaximum)
            {
                var next = waiting.Dequeue();
                int id = NewId(next.Value);
                published.Add(id);
                outgoing.Add(PacketWriter.PublishHead(next.Key, id), next.Key.Payload);
            }
        }

        private int NewId(Action<int> onAck)
        {
            do lastId = lastId % MostPacketIds + 1;
            while (unanswered.ContainsKey(lastId));
            unanswered.Add(lastId, onAck);
            liveness.Sent(true);
            return lastId;
        }

        /// <summary>End the connection at once; the first reason counts.</summary>
        private void End(string why)
        {
            lock (gate)
            {
                if (reason == "") reason = why;
                isOpen = false;
                waiting.Clear();
                unanswered.Clear();
            }
            try
            {
                socket?.Shutdown(SocketShutdown.Both); // a read that waits returns
            }
            catch (Exception error) when (IsLoss(error))
            {
                // It was not connected, or is not any more.
            }
            socket?.Close();
        }

        private static bool IsLoss(Exception error) =>
            error is IOException || error is SocketException || error is ObjectDisposedException || error is InvalidOperationException ||
            error is AuthenticationException || error is TimeoutException || error is AggregateException || error is InvalidDataException;

        private static Exception Deepest(Exception error) => error.InnerException == null ? error : Deepest(error.InnerException);
    }
}
