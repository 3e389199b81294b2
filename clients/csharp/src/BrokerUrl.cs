using System;
using System.Collections.Generic;
using System.Linq;

namespace Mqinfer
{
    /// <summary>A broker's URL: <c>mqtt://</c> or <c>mqtts://</c>, perhaps a login, and the hosts of standbys behind commas.</summary>
    internal sealed class BrokerUrl
    {
        private const int MostHosts = 9;

        /// <summary>Read a URL.</summary>
        /// <exception cref="ConfigException">It is wrong.</exception>
        public BrokerUrl(string url)
        {
            bool usesTls = url.StartsWith("mqtts://", StringComparison.Ordinal);
            if (!usesTls && !url.StartsWith("mqtt://", StringComparison.Ordinal))
                throw new ConfigException("a broker's URL begins with mqtt:// or mqtts://, such as mqtt://127.0.0.1:1883");
            string hosts = url.Substring(usesTls ? 8 : 7).Split('/')[0];
            int at = hosts.LastIndexOf('@');
            if (at >= 0)
            {
                string[] login = hosts.Substring(0, at).Split(new[] { ':' }, 2);
                User = Uri.UnescapeDataString(login[0]);
                if (login.Length > 1) Password = Uri.UnescapeDataString(login[1]);
            }
            Addresses = hosts.Substring(at + 1).Split(',').Select(each => AddressOf(each, usesTls)).ToArray();
            if (Addresses.Count > MostHosts) throw new ConfigException("the broker's URL has more than " + MostHosts + " hosts");
        }

        /// <summary>In the order in which they are tried.</summary>
        public IReadOnlyList<Address> Addresses { get; }

        public string User { get; }

        public string Password { get; }

        private static Address AddressOf(string text, bool usesTls)
        {
            int bracket = text.IndexOf(']'), colon = text.IndexOf(':', Math.Max(bracket, 0)), port = usesTls ? 8883 : 1883;
            if (colon >= 0 && (!int.TryParse(text.Substring(colon + 1), out port) || port < 1 || port > 65535))
                throw new ConfigException(Text.Shown(text) + " has no port from 1 to 65535");
            string host = (colon < 0 ? text : text.Substring(0, colon)).Trim('[', ']');
            if (host == "") throw new ConfigException("the broker's URL names no host; expected one such as mqtt://127.0.0.1:1883");
            return new Address(host, port, usesTls);
        }
    }
}
