using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Net.Security;
using System.Security.Authentication;
using System.Security.Cryptography;
using System.Security.Cryptography.X509Certificates;
using System.Text.RegularExpressions;
#if MONO
using Mono.Security.Interface;
#endif

namespace Mqinfer
{
    /// <summary>Whom TLS trusts, and what it shows.</summary>
    internal sealed class Tls
    {
        private static readonly Regex Pem = new Regex("-----BEGIN CERTIFICATE-----([^-]+)-----END CERTIFICATE-----");
        private readonly X509Certificate2[] authorities;

        /// <summary>Read the files.</summary>
        /// <param name="caFile">PEM; null for the system's authorities.</param>
        /// <param name="certificateFile">PKCS #12; null for none.</param>
        /// <param name="password">Of that file.</param>
        /// <exception cref="ConfigException">A file can't be read.</exception>
        public Tls(string caFile, string certificateFile, string password)
        {
            try
            {
                if (caFile != null) authorities = ReadPem(caFile);
                if (certificateFile != null) Own.Add(new X509Certificate2(certificateFile, password));
            }
            catch (Exception error) when (error is IOException || error is CryptographicException || error is FormatException ||
                                          error is UnauthorizedAccessException)
            {
                throw new ConfigException("CaFile (PEM) or CertificateFile (PKCS #12) can't be read: " + error.Message);
            }
        }

        /// <summary>What it shows.</summary>
        public X509CertificateCollection Own { get; } = new X509CertificateCollection();

        /// <summary>Agree with a broker on a key, and check its certificate.</summary>
        /// <exception cref="AuthenticationException">It is of another host, or of an authority that does not count.</exception>
        public SslStream Secured(Stream plain, string host)
        {
            SslStream stream = Over(plain);
            try
            {
                stream.AuthenticateAsClient(host, Own, SslProtocols.None, false);
                return stream;
            }
            catch (AuthenticationException error)
            {
                string why = (error.InnerException ?? error).Message.Split('\n')[0];
                throw new AuthenticationException(
                    "TLS failed (is the broker's certificate of " + host + ", and of an authority that counts?): " + why);
            }
        }

#if MONO
        /// <summary>Mono's own chains know no elliptic curves: its provider checks against the authorities by itself.</summary>
        private SslStream Over(Stream plain)
        {
            MonoTlsSettings settings = MonoTlsSettings.CopyDefaultSettings();
            if (authorities != null) settings.TrustAnchors = new X509CertificateCollection(authorities);
            settings.RemoteCertificateValidationCallback = (host, certificate, chain, errors) => errors == MonoSslPolicyErrors.None;
            return MonoTlsProviderFactory.GetProvider().CreateSslStream(plain, false, settings).SslStream;
        }

        /// <summary>Return whether a certificate counts that another library was shown: by the system's authorities only.</summary>
        public bool IsTrusted(X509Certificate certificate, SslPolicyErrors errors) =>
            authorities == null ? errors == SslPolicyErrors.None : throw new AuthenticationException(
                "on Mono MQTTnet can't check against CaFile: add the authority to the system's, or build the client without MQTTnet");
#else
        private SslStream Over(Stream plain) =>
            new SslStream(plain, false, (sender, certificate, chain, errors) => IsTrusted(certificate, errors));

        /// <summary>Return whether a certificate is of the name asked for, and signed by an authority that counts.</summary>
        public bool IsTrusted(X509Certificate certificate, SslPolicyErrors errors)
        {
            if (certificate == null || authorities == null) return errors == SslPolicyErrors.None;
            if ((errors & ~SslPolicyErrors.RemoteCertificateChainErrors) != SslPolicyErrors.None) return false;
            using (var chain = new X509Chain())
            {
                chain.ChainPolicy.RevocationMode = X509RevocationMode.NoCheck;
                chain.ChainPolicy.VerificationFlags = X509VerificationFlags.AllowUnknownCertificateAuthority;
                chain.ChainPolicy.ExtraStore.AddRange(authorities);
                return chain.Build(new X509Certificate2(certificate)) && EndsAtAuthority(chain.ChainElements);
            }
        }

        private bool EndsAtAuthority(X509ChainElementCollection chain)
        {
            X509Certificate2 root = chain[chain.Count - 1].Certificate;
            return authorities.Any(each => each.RawData.SequenceEqual(root.RawData));
        }
#endif

        private static X509Certificate2[] ReadPem(string file)
        {
            IEnumerable<Match> blocks = Pem.Matches(File.ReadAllText(file)).Cast<Match>();
            X509Certificate2[] found = blocks.Select(each => new X509Certificate2(Convert.FromBase64String(each.Groups[1].Value))).ToArray();
            if (found.Length == 0) throw new FormatException(file + " holds no certificate");
            return found;
        }
    }
}
