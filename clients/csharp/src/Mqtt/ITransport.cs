using System;
using System.Collections.Generic;

namespace Mqinfer
{
    /// <summary>
    /// One connection to a broker, from CONNECT until it is lost; never a second one. <see cref="Open"/> and
    /// <see cref="Run"/> are called by one thread; all else may be called by any, and never waits for the network. Callbacks come one
    /// at a time, and none after <see cref="Run"/> returned.
    /// </summary>
    internal interface ITransport
    {
        /// <summary>Connect, and wait for the broker's answer.</summary>
        /// <param name="address">Of the broker.</param>
        /// <param name="options">How to log in.</param>
        /// <param name="onMessage">Is called with each message.</param>
        /// <returns>The largest packet that the broker takes, in bytes.</returns>
        /// <exception cref="RefusedException">The broker refused the connection.</exception>
        /// <exception cref="BrokerUnreachableException">It does not answer.</exception>
        long Open(Address address, ConnectOptions options, Action<Incoming> onMessage);

        /// <summary>Deliver what comes until the connection ends; return why it did.</summary>
        string Run();

        /// <summary>Publish with QoS 1.</summary>
        /// <param name="message">What.</param>
        /// <param name="onAck">Is called with the reason code of the PUBACK; not at all where the connection ends before.</param>
        /// <exception cref="MessageTooLargeException">The broker does not take it.</exception>
        void Publish(Outgoing message, Action<int> onAck);

        /// <summary>Subscribe; as for publishing, with the reason code of the SUBACK.</summary>
        /// <param name="filter">Of topics.</param>
        /// <param name="qos">The most that is wanted.</param>
        /// <param name="identifier">Which the broker states with each message that came for this subscription.</param>
        /// <param name="onAck">As for publishing.</param>
        void Subscribe(string filter, int qos, int identifier, Action<int> onAck);

        void Unsubscribe(string filter);

        /// <summary>Keep the connection alive, or end it where the broker is gone; to be called once a second.</summary>
        void Tick();

        /// <summary>Disconnect once what was published has left, or after <paramref name="patience"/>.</summary>
        void Close(TimeSpan patience);
    }

    /// <summary>Where a broker is.</summary>
    internal sealed class Address
    {
        public Address(string host, int port, bool usesTls)
        {
            Host = host;
            Port = port;
            UsesTls = usesTls;
        }

        public string Host { get; }

        public int Port { get; }

        public bool UsesTls { get; }

        public override string ToString() => (UsesTls ? "mqtts://" : "mqtt://") + Host + ":" + Port;
    }

    /// <summary>Who connects, and what it takes.</summary>
    internal sealed class ConnectOptions
    {
        public string ClientId { get; set; }

        public string User { get; set; }

        public string Password { get; set; }

        public Tls Tls { get; set; }

        /// <summary>Largest packet that is taken, in bytes.</summary>
        public long MaximumPacketSize { get; set; }

        /// <summary>Messages of QoS 1 that the broker may send without an acknowledgement.</summary>
        public int ReceiveMaximum { get; set; } = 64;
    }

    /// <summary>A message that came.</summary>
    internal sealed class Incoming
    {
        public string Topic { get; set; }

        public ArraySegment<byte> Payload { get; set; }

        public bool IsRetained { get; set; }

        /// <summary>As hexadecimal digits; empty where there is none.</summary>
        public string Correlation { get; set; } = "";

        /// <summary>The user property <c>xxh3</c>; null where it was not stated.</summary>
        public string Checksum { get; set; }

        /// <summary>Identifiers of the subscriptions that it came for; empty where the broker states none.</summary>
        public List<int> Subscriptions { get; } = new List<int>();
    }

    /// <summary>A message to publish; of what is null or empty nothing is sent.</summary>
    internal sealed class Outgoing
    {
        public string Topic { get; set; }

        public byte[] Payload { get; set; }

        public string ContentType { get; set; }

        public string ResponseTopic { get; set; }

        public byte[] Correlation { get; set; }

        /// <summary>In seconds.</summary>
        public uint? Expiry { get; set; }

        /// <summary>The user property <c>xxh3</c>.</summary>
        public string Checksum { get; set; }
    }

    /// <summary>The broker refused a connection.</summary>
    internal sealed class RefusedException : Exception
    {
        /// <summary>Reason codes of CONNACK after which another attempt with the same options can't succeed.</summary>
        private static readonly HashSet<int> Final = new HashSet<int> { 0x01, 0x02, 0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x8a, 0x8c };

        /// <summary>Those of them that another login may change.</summary>
        private static readonly HashSet<int> Login = new HashSet<int> { 0x86, 0x87, 0x8c };

        public RefusedException(int code, string reason)
            : base("reason code 0x" + code.ToString("x") + (string.IsNullOrEmpty(reason) ? "" : ": " + reason))
        {
            IsFinal = Final.Contains(code);
            NeedsLogin = Login.Contains(code);
        }

        public bool IsFinal { get; }

        public bool NeedsLogin { get; }
    }
}
