using System;
using System.Collections.Generic;

namespace Mqinfer
{
    /// <summary>How a client connects and sends.</summary>
    public sealed class ClientOptions
    {
        /// <summary>In its topics; the user, or made up, where it is null.</summary>
        public string Name { get; set; }

        /// <summary>The root of all topics of the site.</summary>
        public string Root { get; set; } = "mqinfer/v1";

        /// <summary>User of the login.</summary>
        public string User { get; set; }

        /// <summary>Password of the login.</summary>
        public string Password { get; set; }

        /// <summary>PEM file of the authorities that count for <c>mqtts://</c>; null for the system's.</summary>
        public string CaFile { get; set; }

        /// <summary>PKCS #12 file of the client's certificate and key.</summary>
        public string CertificateFile { get; set; }

        /// <summary>Password of that file.</summary>
        public string CertificatePassword { get; set; }

        /// <summary>Of each request, unless its call states another one: the result or the error comes no later.</summary>
        public TimeSpan Timeout { get; set; } = TimeSpan.FromSeconds(10);

        /// <summary>How long connecting waits for the broker.</summary>
        public TimeSpan ConnectTimeout { get; set; } = TimeSpan.FromSeconds(10);

        /// <summary>Requests in flight at a time; more are queued in the client.</summary>
        public int Window { get; set; } = 16;

        /// <summary>Requests without an outcome; one more ends as <c>rejected</c>.</summary>
        public int MaxPending { get; set; } = 1024;

        /// <summary>How long a request that finds no worker, or only busy ones, is sent again.</summary>
        public TimeSpan Patience { get; set; } = TimeSpan.FromSeconds(2);

        /// <summary>
        /// Time after a reconnection, or the loss of a worker, during which patience does not end: workers need time, too.
        /// </summary>
        public TimeSpan Settling { get; set; } = TimeSpan.FromSeconds(6);

        /// <summary>The pause before such a request is sent again first; doubled each time, at most one second.</summary>
        public TimeSpan Backoff { get; set; } = TimeSpan.FromMilliseconds(20);

        /// <summary>Bounds of what a reply may contain.</summary>
        public Limits Limits { get; set; } = new Limits();

        internal void Check()
        {
            CheckedTimeout(Timeout);
            CheckedTimeout(ConnectTimeout);
            if (Window < 1 || MaxPending < 1) throw new ConfigException("Window and MaxPending must be 1 or more");
            if (Patience < TimeSpan.Zero || Settling < TimeSpan.Zero || Backoff < TimeSpan.Zero)
                throw new ConfigException("Patience, Settling and Backoff must be 0 or more");
        }

        internal static TimeSpan CheckedTimeout(TimeSpan timeout)
        {
            if (timeout > TimeSpan.Zero && timeout.TotalSeconds <= 1e6) return timeout;
            throw new ConfigException("a timeout of " + timeout + " is not possible; expected more than 0 and at most 1,000,000 s");
        }
    }

    /// <summary>Optional properties of a request.</summary>
    public sealed class InferOptions
    {
        /// <summary>The result or the error comes no later; null for that of the client.</summary>
        public TimeSpan? Timeout { get; set; }

        /// <summary>A number; empty for the default version.</summary>
        public string Version { get; set; } = "";

        /// <summary>The outputs wanted; empty for all.</summary>
        public IReadOnlyList<RequestedOutput> Outputs { get; set; } = new RequestedOutput[0];

        /// <summary>Codec of the outputs, such as <c>lz4</c> or <c>mask</c>; empty for the worker's choice.</summary>
        public string OutputEncoding { get; set; } = "";

        /// <summary>1 is the highest, 0 the model's default.</summary>
        public long Priority { get; set; }

        /// <summary>Where a frame came from.</summary>
        public Capture Capture { get; set; } = new Capture();

        /// <summary>Further parameters.</summary>
        public Parameters Parameters { get; set; } = new Parameters();
    }
}
