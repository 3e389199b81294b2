using System;

namespace Mqinfer
{
    /// <summary>
    /// How many requests may be sent again for want of a reply: a share of those sent, so that no overload feeds itself.
    /// </summary>
    internal sealed class RetryBudget
    {
        private const double Share = 0.1, Burst = 16;
        private double tokens = Burst;

        /// <summary>Add a request's share of a retry.</summary>
        public void Earn() => tokens = Math.Min(Burst, tokens + Share);

        /// <summary>Spend a retry; return false where none is left.</summary>
        public bool Spend()
        {
            if (tokens < 1) return false;
            tokens--;
            return true;
        }
    }
}
