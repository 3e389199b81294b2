#if MQTTNET
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Linq;
using System.Net;
using System.Net.Sockets;
using System.Security.Authentication;
using System.Security.Cryptography.X509Certificates;
using System.Threading;
using System.Threading.Tasks;
using MQTTnet;
using MQTTnet.Client;
using MQTTnet.Formatter;
using MQTTnet.Packets;
using MQTTnet.Protocol;

namespace Mqinfer
{
    /// <summary>MQTT 5 by MQTTnet 4.3, over its own sockets and TLS.</summary>
    internal sealed class MqttNetTransport : ITransport
    {
        /// <summary>What the socket holds each way. With MQTTnet's 8 KiB many small messages came to wait 40 ms each.</summary>
        private const int SocketBytes = 1 << 20;
        private static readonly TimeSpan ConnectTimeout = TimeSpan.FromSeconds(10), KeepAlive = TimeSpan.FromSeconds(60);

        /// <summary>The broker has so long to answer a ping: it, or the answer, may be behind a large message.</summary>
        private static readonly TimeSpan PingTimeout = TimeSpan.FromSeconds(30);

        /// <summary>One callback runs at a time, and none after <see cref="Run"/>, which waits for it.</summary>
        private readonly object gate = new object();
        private readonly IMqttClient client = new MqttFactory().CreateMqttClient();
        private readonly TaskCompletionSource<string> ended = new TaskCompletionSource<string>();
        private readonly CancellationTokenSource stop = new CancellationTokenSource();
        private readonly Stopwatch sincePing = Stopwatch.StartNew();
        private TimeSpan pingAfter = TimeSpan.FromSeconds(10);

        /// <summary>The broker's Receive Maximum; what is beyond it waits, bounded by what its callers have in flight.</summary>
        private SemaphoreSlim slots;
        private long largest;
        private bool identifies;

        /// <inheritdoc/>
        public long Open(Address address, ConnectOptions options, Action<Incoming> onMessage)
        {
            client.ApplicationMessageReceivedAsync += each =>
            {
                Tell(() => onMessage(Read(each.ApplicationMessage)));
                return Task.CompletedTask;
            };
            client.DisconnectedAsync += each =>
            {
                string code = ((int)each.Reason).ToString("x");
                End(each.Exception != null ? Why(each.Exception) : "the broker closed the connection (reason code 0x" + code + ")");
                return Task.CompletedTask;
            };
            MqttClientConnectResult answer = Connect(address, options);
            if (answer.ResultCode != 0) throw new RefusedException((int)answer.ResultCode, answer.ReasonString);
            if (answer.MaximumQoS == MqttQualityOfServiceLevel.AtMostOnce) throw new RefusedException(0x9b, "the broker has no QoS 1");
            slots = new SemaphoreSlim(answer.ReceiveMaximum ?? ushort.MaxValue);
            identifies = answer.SubscriptionIdentifiersAvailable;
            if (answer.ServerKeepAlive > 0) pingAfter = TimeSpan.FromSeconds(Math.Min(pingAfter.TotalSeconds, answer.ServerKeepAlive / 2.0));
            return largest = answer.MaximumPacketSize ?? uint.MaxValue;
        }

        /// <inheritdoc/>
        public string Run()
        {
            string why = ended.Task.Result;
            lock (gate) return why;
        }

        /// <inheritdoc/>
        public void Publish(Outgoing message, Action<int> onAck)
        {
            PacketWriter.Check(message, largest);
            _ = Ask(() => Publish(message), onAck);
        }

        /// <inheritdoc/>
        public void Subscribe(string filter, int qos, int identifier, Action<int> onAck)
        {
            var topic = new MqttTopicFilter { Topic = filter, QualityOfServiceLevel = (MqttQualityOfServiceLevel)qos };
            var options = new MqttClientSubscribeOptions { SubscriptionIdentifier = identifies ? (uint)identifier : 0 };
            options.TopicFilters.Add(topic);
            _ = Ask(async () => (int)(await client.SubscribeAsync(options, stop.Token).ConfigureAwait(false)).Items.First().ResultCode, onAck);
        }

        /// <inheritdoc/>
        public void Unsubscribe(string filter)
        {
            var options = new MqttClientUnsubscribeOptions();
            options.TopicFilters.Add(filter);
            _ = Ask(async () => (await client.UnsubscribeAsync(options, stop.Token).ConfigureAwait(false)).Items.Count, code => { });
        }

        /// <inheritdoc/>
        public void Tick()
        {
            // MQTTnet's own pings are only sent while nothing else is, so who publishes would not learn that the broker is gone.
            if (!client.IsConnected || sincePing.Elapsed < pingAfter) return;
            sincePing.Restart();
            _ = Ask(Ping, code => { });
        }

        /// <inheritdoc/>
        public void Close(TimeSpan patience)
        {
            // What was published is before it in MQTTnet's queue.
            if (client.IsConnected) Task.WaitAny(new[] { client.DisconnectAsync(new MqttClientDisconnectOptions(), stop.Token) }, patience);
            End("the connection was closed");
        }

        private MqttClientConnectResult Connect(Address address, ConnectOptions options)
        {
            using (var patience = CancellationTokenSource.CreateLinkedTokenSource(stop.Token))
            {
                patience.CancelAfter(ConnectTimeout);
                try
                {
                    return client.ConnectAsync(Options(address, options), patience.Token).GetAwaiter().GetResult();
                }
                catch (Exception error)
                {
                    throw new BrokerUnreachableException(Why(error));
                }
            }
        }

        private static MqttClientOptions Options(Address address, ConnectOptions options) => new MqttClientOptions
        {
            ProtocolVersion = MqttProtocolVersion.V500,
            ClientId = options.ClientId,
            CleanSession = true,
            KeepAlivePeriod = KeepAlive,
            MaximumPacketSize = (uint)options.MaximumPacketSize,
            ReceiveMaximum = (ushort)options.ReceiveMaximum,
            Credentials = options.User == null ? null : new MqttClientCredentials(options.User, Bytes(options.Password)),
            ThrowOnNonSuccessfulConnectResponse = false,
            ChannelOptions = new MqttClientTcpOptions
            {
                RemoteEndpoint = new DnsEndPoint(address.Host, address.Port),
                NoDelay = true,
                BufferSize = SocketBytes,
                LingerState = new LingerOption(false, 0), // by default what was not sent yet is thrown away at the end
                TlsOptions = new MqttClientTlsOptions
                {
                    UseTls = address.UsesTls,
                    TargetHost = address.Host,
                    SslProtocol = SslProtocols.None,
                    IgnoreCertificateRevocationErrors = true,
                    ClientCertificatesProvider = new DefaultMqttCertificatesProvider(options.Tls.Own.Cast<X509Certificate>()),
                    CertificateValidationHandler = each => options.Tls.IsTrusted(each.Certificate, each.SslPolicyErrors),
                },
            },
        };

        private static byte[] Bytes(string password) => password == null ? null : Text.Utf8.GetBytes(password);

        private static Incoming Read(MqttApplicationMessage message)
        {
            var found = new Incoming
            {
                Topic = message.Topic,
                Payload = message.PayloadSegment,
                IsRetained = message.Retain,
                Correlation = string.Concat((message.CorrelationData ?? new byte[0]).Select(each => each.ToString("x2"))),
                Checksum = message.UserProperties?.FirstOrDefault(each => each.Name == PacketWriter.Checksum)?.Value,
            };
            found.Subscriptions.AddRange((message.SubscriptionIdentifiers ?? new List<uint>()).Select(each => (int)each));
            return found;
        }

        private async Task<int> Publish(Outgoing message)
        {
            var made = new MqttApplicationMessage
            {
                Topic = message.Topic,
                PayloadSegment = new ArraySegment<byte>(message.Payload),
                QualityOfServiceLevel = MqttQualityOfServiceLevel.AtLeastOnce,
                ContentType = message.ContentType,
                ResponseTopic = message.ResponseTopic,
                CorrelationData = message.Correlation,
                MessageExpiryInterval = message.Expiry ?? 0,
            };
            var checksum = new MqttUserProperty(PacketWriter.Checksum, message.Checksum ?? "");
            if (message.Checksum != null) made.UserProperties = new List<MqttUserProperty> { checksum };
            await slots.WaitAsync(stop.Token).ConfigureAwait(false);
            try
            {
                return (int)(await client.PublishAsync(made, stop.Token).ConfigureAwait(false)).ReasonCode;
            }
            finally
            {
                slots.Release();
            }
        }

        private async Task<int> Ping()
        {
            using (var patience = CancellationTokenSource.CreateLinkedTokenSource(stop.Token))
            {
                patience.CancelAfter(PingTimeout);
                await client.PingAsync(patience.Token).ConfigureAwait(false);
                return 0;
            }
        }

        /// <summary>Tell the reason code that the broker answers with. Whatever fails ends the connection.</summary>
        private async Task Ask(Func<Task<int>> question, Action<int> onAnswer)
        {
            try
            {
                int code = await question().ConfigureAwait(false);
                Tell(() => onAnswer(code));
            }
            catch (Exception error)
            {
                End("the connection broke: " + Why(error));
            }
        }

        private void Tell(Action what)
        {
            try
            {
                lock (gate)
                    if (!ended.Task.IsCompleted)
                        what();
            }
            catch (Exception error)
            {
                End(Why(error));
            }
        }

        private static string Why(Exception error) => error.GetBaseException().Message.Split('\n')[0];

        /// <summary>End the connection at once; the first reason counts.</summary>
        private void End(string why)
        {
            if (!ended.TrySetResult(why)) return;
            stop.Cancel();
            _ = client.DisconnectAsync(new MqttClientDisconnectOptions(), stop.Token);
        }
    }
}
#endif
