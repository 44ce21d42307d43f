import trunkline from './index.js';

export const {
  AgentProtocol, BaseAgent, Channel, Client, Connection, CygwinAgent, HTTPAgent, HTTPSAgent, OpenSSHAgent, PageantAgent, SFTP,
  Server, Tunnel, configure, connect, createAgent, utils,
} = trunkline;
export default trunkline;
