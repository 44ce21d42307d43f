// Every name of @types/ssh2 but those of the server side. Compiled against both.

export {
  AgentProtocol, BaseAgent, Client, CygwinAgent, HTTPAgent, HTTPSAgent, OpenSSHAgent, PageantAgent, Server, createAgent, utils,
} from 'ssh2';
export type {
  AcceptConnection, AgentAuthMethod, AgentInboundRequest, AlgorithmList, Algorithms, AnyAuthMethod, Attributes, AuthHandlerMiddleware,
  AuthMethod, AuthenticationType, Callback, ChangePasswordCallback, Channel, ChannelSubType, ChannelType,
  CipherAlgorithm, ClientCallback, ClientChannel, ClientErrorExtensions, ClientForwardCallback, ClientSFTPCallback,
  CompressionAlgorithm, ConnectConfig, DebugFunction, ErrorCallback, ExecOptions, FileEntry, FileEntryWithStats,
  GetStreamCallback, HTTPAgentOptions, HTTPSAgentOptions, HostBasedAuthMethod, HostFingerprintVerifier, HostVerifier, IdentityCallback, InputAttributes,
  KexAlgorithm, KeyType, KeyboardInteractiveAuthMethod, KeyboardInteractiveCallback, KnownPublicKeys, MacAlgorithm,
  NegotiatedAlgorithms, NextAuthHandler, NoAuthMethod, OpenMode, ParsedKey, PasswordAuthMethod, Prompt,
  PseudoTtyOptions, PublicKeyAuthMethod, PublicKeyEntry, ReadFileOptions, ReadStream, ReadStreamOptions,
  RejectConnection, SFTPWrapper, ServerHostKeyAlgorithm, ShellOptions, SignCallback, SigningRequestOptions, Stats,
  SyncHostFingerprintVerifier, SyncHostVerifier, TcpConnectionDetails, TerminalModes, TransferOptions,
  UNIXConnectionDetails, VerifyCallback, WriteFileOptions, WriteStream, WriteStreamOptions, X11Details, X11Options,
} from 'ssh2';
